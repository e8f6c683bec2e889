//! Copying elements that lie apart in memory, such as those of a flipped or cropped image, into one run.
//!
//! Elements are opaque bytes. Axes that can be walked as one are joined; what is left is walked line by line. In most
//! images the elements of a line are a few bytes each (a pixel), and close together: there a line is copied 16 bytes at
//! a time, through one byte shuffle, if the processor has it (`shuffle.rs`).
//!
//! The owner of both memories calls this, from any thread; nothing is kept.

mod shuffle;

use shuffle::{Room, Shuffle, WINDOW};

/// Elements along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    count: usize,
    /// Bytes from one to the next.
    stride: isize,
}

const ONE: Axis = Axis { count: 1, stride: 0 };

/// A group of elements is at most so long, in bytes: two have to fit into a window.
const LONGEST_GROUP: usize = WINDOW / 2;
/// Groups that are walked element by element before the next ones, so that their memory stays in the cache.
const BLOCK: usize = 1024;

/// How elements lie in memory, in the order in which they are to be copied.
#[derive(Debug, Clone)]
pub struct Strided {
    /// Axes outside of a line, outermost first.
    around: Vec<Axis>,
    /// The groups of a line.
    line: Axis,
    /// The elements of a group.
    group: Axis,
    /// Bytes of an element.
    run: usize,
    /// Bytes of them all.
    len: usize,
    /// Where they lie, as seen from the first one: the lowest byte of all, and the one behind the highest.
    reach: (isize, isize),
    shuffle: Option<Shuffle>,
}

/// The order of an array's axes in memory, outermost first: copied in this order, memory is read from front to back as
/// far as it can be. Axes that are equal in that stay as they are, and so does an array that repeats elements.
pub fn memory_order(shape: &[usize], strides: &[isize]) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..shape.len()).collect();
    if shape.iter().zip(strides).any(|(&count, &stride)| count > 1 && stride == 0) {
        return axes;
    }
    // The stride of an axis of one element means nothing: it stays behind its neighbour.
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
    /// Elements of `size` bytes along axes of (count, stride in bytes), outermost first. None if they are more than
    /// memory could hold.
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
            return Some(Self { around: vec![], line: ONE, group: ONE, run: 0, len, reach: (0, 0), shuffle: None });
        }
        let mut reach = (0, isize::try_from(size).ok()?);
        for axis in &joined {
            let last = axis.stride.checked_mul(axis.count as isize - 1)?;
            let end = if last < 0 { &mut reach.0 } else { &mut reach.1 };
            *end = end.checked_add(last)?;
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
        let shuffle = Shuffle::new(line, group, run);
        Some(Self { around: joined, line, group, run, len, reach, shuffle })
    }

    /// Bytes of all elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the elements lie behind each other as they are.
    pub fn is_dense(&self) -> bool {
        self.run == self.len
    }

    /// Copies the elements to `to`.
    ///
    /// # Safety
    /// `from` is the first element; all elements are readable, `to` is writable for `len` bytes, and the two do not
    /// overlap.
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8) {
        let room = Room {
            low: from.wrapping_offset(self.reach.0),
            end: from.wrapping_offset(self.reach.1),
            to_end: to.wrapping_add(self.len),
        };
        // SAFETY: as promised by the caller.
        unsafe { self.copy_around(&self.around, from, to, self.len, shuffle::can().then_some(room)) }
    }

    /// # Safety
    /// As for `copy`, for the part of the elements within `around`, which has `len` bytes. The parts are copied in the
    /// order of `to`: what lies behind one there may be written over.
    unsafe fn copy_around(&self, around: &[Axis], from: *const u8, to: *mut u8, len: usize, room: Option<Room>) {
        let Some((outer, inner)) = around.split_first() else {
            // SAFETY: the part is one line.
            return unsafe { self.copy_line(from, to, room) };
        };
        let part = len / outer.count;
        for index in 0..outer.count {
            // SAFETY: each index is an element of the axis, and has its own part of `to`.
            unsafe { self.copy_around(inner, place(from, *outer, index), to.add(index * part), part, room) };
        }
    }

    /// # Safety
    /// As for `copy`, for one line.
    unsafe fn copy_line(&self, from: *const u8, to: *mut u8, room: Option<Room>) {
        let Self { line, group, run, shuffle, .. } = *self;
        let done = match (shuffle, room) {
            // SAFETY: the processor can, and the memory is as promised by the caller.
            (Some(shuffle), Some(room)) => unsafe { shuffle.copy(from, to, line, room) },
            _ => 0,
        };
        let bytes = group.count * run;
        // Few elements in a group are quicker taken one by one from all groups than all of them from each.
        for start in (done..line.count).step_by(BLOCK) {
            let count = BLOCK.min(line.count - start);
            for element in 0..group.count {
                // SAFETY: elements of this line, and where they go.
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
/// `index` is one of the axis' elements, and they are parts of one object.
#[inline(always)]
unsafe fn place(from: *const u8, axis: Axis, index: usize) -> *const u8 {
    // SAFETY: as promised by the caller.
    unsafe { from.offset(index as isize * axis.stride) }
}

/// Copies runs of bytes, `step` bytes apart in `to`.
///
/// # Safety
/// The runs along `axis` are readable, and where they go is writable.
unsafe fn copy_runs(from: *const u8, axis: Axis, to: *mut u8, step: usize, run: usize) {
    /// # Safety
    /// As for the function around it.
    #[inline(always)]
    unsafe fn copy<const RUN: usize>(from: *const u8, axis: Axis, to: *mut u8, step: usize) {
        for index in 0..axis.count {
            // SAFETY: as promised by the caller; bytes are aligned everywhere.
            unsafe { *to.add(index * step).cast::<[u8; RUN]>() = *place(from, axis, index).cast::<[u8; RUN]>() };
        }
    }
    // SAFETY: as promised by the caller.
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
