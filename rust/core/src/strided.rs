//! Copies elements with gaps between them, such as the pixels of a cropped image, into contiguous memory.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    count: usize,
    stride: isize,
}

const ONE: Axis = Axis { count: 1, stride: 0 };

const LONGEST_GROUP: usize = 8;
/// The maximum number of groups of elements that are copied together, because more groups would not fit into the
/// processor's cache.
const BLOCK: usize = 1024;

/// The layout of the elements of an array in memory.
#[derive(Debug, Clone)]
pub struct Strided {
    around: Vec<Axis>,
    line: Axis,
    group: Axis,
    run: usize,
    len: usize,
}

/// Returns the axes of an array, outermost first, in the order that reads memory as sequentially as possible.
pub fn memory_order(shape: &[usize], strides: &[isize]) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..shape.len()).collect();
    if shape.iter().zip(strides).any(|(&count, &stride)| count > 1 && stride == 0) {
        return axes;
    }
    // An axis with one element stays next to the preceding axis in this order, because the stride of such an axis is
    // arbitrary.
    let mut before = usize::MAX;
    let reach = shape.iter().zip(strides).map(|(&count, &stride)| {
        before = if count > 1 { stride.unsigned_abs() } else { before };
        before
    });
    let reach: Vec<usize> = reach.collect();
    axes.sort_by_key(|&axis| std::cmp::Reverse(reach[axis]));
    axes
}

impl Strided {
    /// Each axis is a pair of count and byte stride, outermost axis first. Returns None if the array is too large for
    /// memory.
    pub fn new(size: usize, axes: impl IntoIterator<Item = (usize, isize)>) -> Option<Self> {
        let mut joined: Vec<Axis> = Vec::new();
        let mut len = size;
        for (count, stride) in axes {
            len = len.checked_mul(count)?;
            if count == 1 || len == 0 {
                continue;
            }
            match joined.last_mut() {
                Some(outer) if stride.checked_mul(count as isize) == Some(outer.stride) => {
                    *outer = Axis { count: outer.count.checked_mul(count)?, stride };
                }
                _ => joined.push(Axis { count, stride }),
            }
        }
        if len == 0 {
            return Some(Self { around: vec![], line: ONE, group: ONE, run: 0, len });
        }
        let run = joined.pop_if(|inner| inner.stride == size as isize).map_or(size, |inner| inner.count * size);
        let group = match joined.last() {
            Some(inner) if joined.len() > 1 && inner.count <= LONGEST_GROUP / run => joined.pop().unwrap_or(ONE),
            _ => ONE,
        };
        let line = joined.pop().unwrap_or(ONE);
        Some(Self { around: joined, line, group, run, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_dense(&self) -> bool {
        self.run == self.len
    }

    /// # Safety
    /// `from` must point to the first element, and all elements must be readable. `to` must be writable for `len`
    /// bytes, and must not overlap any element.
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8) {
        // SAFETY: the caller guarantees that all elements are readable and that `to` is writable for `len` bytes.
        unsafe { self.copy_around(&self.around, from, to, self.len) }
    }

    /// # Safety
    /// The axes in `around` and the two innermost axes must describe `len` bytes of elements. The safety conditions of
    /// `copy` must hold for all elements on these axes.
    unsafe fn copy_around(&self, around: &[Axis], from: *const u8, to: *mut u8, len: usize) {
        let Some((outer, inner)) = around.split_first() else {
            // SAFETY: all elements are on the two innermost axes, and the caller guarantees the conditions of `copy`
            // for these elements.
            return unsafe { self.copy_line(from, to) };
        };
        let part = len / outer.count;
        for index in 0..outer.count {
            // SAFETY: `index` is less than `outer.count`, and each index has a separate part of `to`.
            unsafe { self.copy_around(inner, pointer_to(from, *outer, index), to.add(index * part), part) };
        }
    }

    /// # Safety
    /// The safety conditions of `copy` must hold for the elements on the two innermost axes.
    unsafe fn copy_line(&self, from: *const u8, to: *mut u8) {
        let Self { line, group, run, .. } = *self;
        let bytes = group.count * run;
        // The inner loop (`copy_runs`) runs over many groups, because a loop over the few elements of one group would
        // be slow.
        for start in (0..line.count).step_by(BLOCK) {
            let count = BLOCK.min(line.count - start);
            for element in 0..group.count {
                // SAFETY: `from` points to one of the elements that the caller guarantees to be readable. The caller
                // guarantees that the destination `to` is writable.
                unsafe {
                    let from = pointer_to(pointer_to(from, line, start), group, element);
                    let to = to.add(start * bytes + element * run);
                    copy_runs(from, Axis { count, ..line }, to, bytes, run);
                }
            }
        }
    }
}

/// # Safety
/// `index` must be less than `axis.count`, and all elements of the axis must be in one allocated object.
#[inline(always)]
unsafe fn pointer_to(from: *const u8, axis: Axis, index: usize) -> *const u8 {
    // SAFETY: the caller guarantees that the element with this index is in the same allocated object as `from`.
    unsafe { from.offset(index as isize * axis.stride) }
}

/// Copies the first `run` bytes of each element along `axis` from `from` to `to`. In `to`, the copies begin `step`
/// bytes apart.
///
/// # Safety
/// `run` bytes must be readable at each element of `axis`, and `to` must be writable for each copy.
unsafe fn copy_runs(from: *const u8, axis: Axis, to: *mut u8, step: usize, run: usize) {
    /// # Safety
    /// The conditions of `copy_runs` must hold for `run` = `RUN`.
    #[inline(always)]
    unsafe fn copy<const RUN: usize>(from: *const u8, axis: Axis, to: *mut u8, step: usize) {
        for index in 0..axis.count {
            // SAFETY: the caller guarantees that element and copy are valid, and byte arrays may have any alignment.
            unsafe { *to.add(index * step).cast::<[u8; RUN]>() = *pointer_to(from, axis, index).cast::<[u8; RUN]>() };
        }
    }
    // SAFETY: the caller guarantees that all elements are readable and all copies are writable.
    unsafe {
        match run {
            1 => copy::<1>(from, axis, to, step),
            2 => copy::<2>(from, axis, to, step),
            3 => copy::<3>(from, axis, to, step),
            4 => copy::<4>(from, axis, to, step),
            6 => copy::<6>(from, axis, to, step),
            8 => copy::<8>(from, axis, to, step),
            12 => copy::<12>(from, axis, to, step),
            16 => copy::<16>(from, axis, to, step),
            24 => copy::<24>(from, axis, to, step),
            32 => copy::<32>(from, axis, to, step),
            _ => {
                for index in 0..axis.count {
                    std::ptr::copy_nonoverlapping(pointer_to(from, axis, index), to.add(index * step), run);
                }
            }
        }
    }
}
