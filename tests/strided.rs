//! Compares `Strided` with a simple loop that copies non-contiguous elements.

use proptest::prelude::*;
use torchdata_core::strided::{Strided, memory_order};

/// An array at the end of a buffer.
#[derive(Debug, Clone)]
struct Array {
    size: usize,
    shape: Vec<usize>,
    strides: Vec<isize>,
    first: usize,
    memory: Vec<u8>,
}

impl Array {
    fn new(size: usize, axes: Vec<(usize, isize)>) -> Self {
        let reach = |(count, stride): &(usize, isize)| stride * (*count as isize - 1).max(0);
        let below: isize = axes.iter().map(reach).map(|reach| reach.min(0)).sum();
        let above: isize = axes.iter().map(reach).map(|reach| reach.max(0)).sum();
        let memory = (0..(above - below) as usize + size).map(|at| (at * 7 + at / 251) as u8).collect();
        let (shape, strides) = axes.into_iter().unzip();
        Self { size, shape, strides, first: below.unsigned_abs(), memory }
    }

    fn element(&self, index: &[usize]) -> &[u8] {
        let at: isize = index.iter().zip(&self.strides).map(|(&index, &stride)| index as isize * stride).sum();
        &self.memory[(self.first as isize + at) as usize..][..self.size]
    }

    fn elements(&self, axes: &[usize]) -> Vec<u8> {
        let mut found = Vec::new();
        if self.shape.contains(&0) {
            return found;
        }
        let mut index = vec![0; self.shape.len()];
        loop {
            found.extend_from_slice(self.element(&index));
            let Some(&axis) = axes.iter().rev().find(|&&axis| index[axis] + 1 < self.shape[axis]) else { return found };
            let first_inner = axes.iter().position(|&one| one == axis).unwrap() + 1;
            axes[first_inner..].iter().for_each(|&one| index[one] = 0);
            index[axis] += 1;
        }
    }

    fn plan(&self, axes: &[usize]) -> Strided {
        Strided::new(self.size, axes.iter().map(|&axis| (self.shape[axis], self.strides[axis]))).unwrap()
    }

    fn copied(&self, axes: &[usize]) -> Vec<u8> {
        let plan = self.plan(axes);
        let mut to = vec![0xCA; plan.len()];
        // SAFETY: the buffer contains all elements of the array, and `to` has room for all of them.
        unsafe { plan.copy(self.memory.as_ptr().add(self.first), to.as_mut_ptr()) };
        to
    }
}

fn in_order(array: &Array) -> Vec<usize> {
    (0..array.shape.len()).collect()
}

fn arrays() -> impl Strategy<Value = Array> {
    let size = prop::sample::select(vec![1_usize, 2, 3, 4, 8, 12, 16, 32]);
    let count = prop_oneof![3 => 1_usize..6, 1 => 30_usize..70, 1 => Just(0)];
    (size, prop::collection::vec((count, 0_isize..3, any::<bool>(), 0_isize..2), 0..5), any::<u64>()).prop_map(
        |(size, axes, seed)| {
            // Chooses strides from the innermost axis to the outermost axis, with random gaps and directions.
            let mut next = size as isize;
            let mut laid: Vec<(usize, isize)> = Vec::new();
            for (count, gap, down, every) in axes {
                let stride = next * (1 + every) + gap;
                laid.insert(0, (count, if down { -stride } else { stride }));
                next = (stride * count.max(1) as isize).min(40_000);
            }
            let mut seed = seed;
            for index in (1..laid.len()).rev() {
                laid.swap(index, seed as usize % (index + 1));
                seed /= 7;
            }
            Array::new(size, laid)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn elements_are_copied_in_the_requested_order(array in arrays()) {
        for axes in [in_order(&array), memory_order(&array.shape, &array.strides)] {
            prop_assert_eq!(array.copied(&axes), array.elements(&axes));
        }
    }
}

#[test]
fn memory_order_puts_the_longest_strides_first_and_leaves_repeated_elements_alone() {
    assert_eq!(memory_order(&[3, 224, 224], &[1, 672, 3]), [1, 2, 0]);
    assert_eq!(memory_order(&[5, 6], &[-8, 40]), [1, 0]);
    assert_eq!(memory_order(&[4, 1, 5, 1], &[8, 9999, 32, 0]), [2, 3, 0, 1]);
    assert_eq!(memory_order(&[100, 100], &[0, 8]), [0, 1]);
    assert_eq!(memory_order(&[], &[]), [0_usize; 0]);
}

#[test]
fn contiguous_elements_in_memory_order_are_dense() {
    let dense = |array: &Array, axes: &[usize]| array.plan(axes).is_dense();
    let transposed = Array::new(1, vec![(3, 1), (20, 90), (30, 3)]);
    assert!(dense(&transposed, &memory_order(&transposed.shape, &transposed.strides)));
    assert!(!dense(&transposed, &in_order(&transposed)));
    for strided in [vec![(20, -8)], vec![(20, 16)], vec![(3, 0)], vec![(4, 40), (4, 8)]] {
        let array = Array::new(8, strided);
        assert!(!dense(&array, &in_order(&array)));
    }
    assert!(dense(&Array::new(8, vec![]), &[]));
    assert!(dense(&Array::new(8, vec![(0, -8), (5, 3)]), &[0, 1]));
}

#[test]
fn more_elements_than_the_address_space_holds_are_rejected() {
    assert!(Strided::new(8, [(usize::MAX, 0)]).is_none());
    assert!(Strided::new(1, [(usize::MAX, 0), (2, 0)]).is_none());
    assert_eq!(Strided::new(1, [(0, 0), (usize::MAX, 0)]).map(|plan| plan.len()), Some(0));
}
