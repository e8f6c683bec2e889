//! Copies elements with gaps between them, such as the pixels of a flipped or cropped image, into contiguous memory.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    count: usize,
    stride: isize,
}

const ONE: Axis = Axis { count: 1, stride: 0 };

const LONGEST_GROUP: usize = 8;
/// The number of groups that are copied together as a block, which fits into the processor's cache.
const BLOCK: usize = 1024;

/// The layout of elements in memory.
#[derive(Debug, Clone)]
pub struct Strided {
    /// The axes outside of the axis `line`, with the outermost axis first.
    around: Vec<Axis>,
    line: Axis,
    group: Axis,
    run: usize,
    len: usize,
}

/// Returns the axes of an array, outermost first, in an order in which the memory is read as sequentially as possible.
/// If a stride is 0, the order of the axes does not change.
pub fn memory_order(shape: &[usize], strides: &[isize]) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..shape.len()).collect();
    if shape.iter().zip(strides).any(|(&count, &stride)| count > 1 && stride == 0) {
        return axes;
    }
    // The stride of an axis with one element has no meaning, so the stride of the preceding axis is used.
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
    /// Creates the layout for elements of `size` bytes and axes of (count, byte stride), outermost first. Returns None
    /// if the layout is too large.
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
        let run = match joined.pop_if(|inner| inner.stride == size as isize) {
            Some(inner) => inner.count * size,
            None => size,
        };
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

    /// Copies the elements to `to`.
    ///
    /// # Safety
    /// `from` points to the first readable element. `to` is writable for `len` bytes, and overlaps no source element.
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8) {
        // SAFETY: the caller guarantees the conditions that this function documents.
        unsafe { self.copy_around(&self.around, from, to, self.len) }
    }

    /// # Safety
    /// The conditions of `copy` hold for the `len` bytes of elements that the axes `around` describe.
    unsafe fn copy_around(&self, around: &[Axis], from: *const u8, to: *mut u8, len: usize) {
        let Some((outer, inner)) = around.split_first() else {
            // SAFETY: without outer axes, the elements are one line.
            return unsafe { self.copy_line(from, to) };
        };
        let part = len / outer.count;
        for index in 0..outer.count {
            // SAFETY: `index` is inside the axis, and each index has a separate part of `to`.
            unsafe { self.copy_around(inner, place(from, *outer, index), to.add(index * part), part) };
        }
    }

    /// # Safety
    /// The conditions of `copy` hold for one line.
    unsafe fn copy_line(&self, from: *const u8, to: *mut u8) {
        let Self { line, group, run, .. } = *self;
        let bytes = group.count * run;
        // For small groups, copying one element of each group at a time is faster than copying group by group.
        for start in (0..line.count).step_by(BLOCK) {
            let count = BLOCK.min(line.count - start);
            for element in 0..group.count {
                // SAFETY: `from` and `to` point to elements of the line and to the places of their copies.
                unsafe {
                    let from = place(place(from, line, start), group, element);
                    let to = to.add(start * bytes + element * run);
                    copy_runs(from, Axis { count, ..line }, to, bytes, run);
                }
            }
        }
    }
}

/// # Safety
/// `index` is less than `axis.count`, and all elements of the axis are parts of one object.
#[inline(always)]
unsafe fn place(from: *const u8, axis: Axis, index: usize) -> *const u8 {
    // SAFETY: the caller guarantees the conditions that this function documents.
    unsafe { from.offset(index as isize * axis.stride) }
}

/// Copies `run` bytes of each element to places that are `step` bytes apart.
///
/// # Safety
/// `run` bytes are readable at each element of `axis`, and `to` is writable for each copy.
unsafe fn copy_runs(from: *const u8, axis: Axis, to: *mut u8, step: usize, run: usize) {
    /// # Safety
    /// The conditions of `copy_runs` hold.
    #[inline(always)]
    unsafe fn copy<const RUN: usize>(from: *const u8, axis: Axis, to: *mut u8, step: usize) {
        for index in 0..axis.count {
            // SAFETY: the caller guarantees that both elements are valid, and bytes are always aligned.
            unsafe { *to.add(index * step).cast::<[u8; RUN]>() = *place(from, axis, index).cast::<[u8; RUN]>() };
        }
    }
    // SAFETY: the caller guarantees the conditions that this function documents.
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
                    std::ptr::copy_nonoverlapping(place(from, axis, index), to.add(index * step), run);
                }
            }
        }
    }
}
