//! Copies short elements of a line 16 bytes at a time. A step reads a window of memory, moves the bytes of all elements
//! in it to their targets, and writes a window.
//!
//! x86-64 supports the shuffle since SSSE3, which is detected at run time. aarch64 always supports it.

use super::Axis;

/// Bytes that one step reads and writes.
pub const WINDOW: usize = 16;

/// The memory that steps may access: the source from its lowest byte to its end, and the target up to its end.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    pub low: *const u8,
    pub end: *const u8,
    pub to_end: *mut u8,
}

/// Copies several groups of a line at once.
#[derive(Debug, Clone, Copy)]
pub struct Shuffle {
    /// Groups in a step, and their bytes.
    groups: usize,
    bytes: usize,
    /// The number of steps that cover the whole line. The last group may read and write beyond the line.
    all: usize,
    /// The number of steps that stay within the line.
    within: usize,
    /// The first byte that a step reads, relative to its first group.
    low: isize,
    /// The source of each byte.
    table: [u8; WINDOW],
}

impl Shuffle {
    /// Returns None if a step would copy too little or nothing.
    pub fn new(line: Axis, group: Axis, run: usize) -> Option<Self> {
        let bytes = group.count * run;
        let reach = line.stride.unsigned_abs();
        let inner = group.stride.unsigned_abs().checked_mul(group.count - 1)?.checked_add(run)?;
        if inner > WINDOW || reach > WINDOW || reach == 0 {
            return None;
        }
        let groups = (WINDOW / bytes).min((WINDOW - inner) / reach + 1);
        let bytes_of_step = groups * bytes;
        if groups == 0 || (groups == 1 && !(WINDOW / 2 + 1..WINDOW).contains(&bytes)) {
            return None; // a single group of a common size is copied as fast without a shuffle
        }
        // The part of its windows that a step covers. The other bytes belong to later groups. If steps must stay within
        // the line, the last groups that would exceed it are copied otherwise.
        let covered = bytes_of_step.min((groups - 1) * reach + inner);
        let rest = (WINDOW - covered).div_ceil(reach.min(bytes));
        // The window starts with its first group, or ends with it if the line runs downward in memory. The bytes beyond
        // its last group belong to the continuation of the line.
        let span = group.stride * (group.count as isize - 1);
        let low = if line.stride > 0 { span.min(0) } else { span.max(0) + run as isize - WINDOW as isize };
        // The highest bit makes a zero byte, which is overwritten later.
        let mut table = [0x80; WINDOW];
        for (index, place) in table.iter_mut().take(bytes_of_step).enumerate() {
            let (element, byte) = (index / run, index % run);
            let at = line.stride * (element / group.count) as isize + group.stride * (element % group.count) as isize;
            *place = (at - low) as u8 + byte as u8;
        }
        let (all, within) = (line.count.div_ceil(groups), line.count.saturating_sub(rest) / groups);
        Some(Self { groups, bytes: bytes_of_step, all, within, low, table })
    }

    /// Copies groups of the line, from its first one, and returns their number. If the memory beyond the line may not
    /// be accessed, copies only the groups that can be copied without accessing that memory. May overwrite bytes after
    /// the line in the target.
    ///
    /// # Safety
    /// As for `Strided::copy`, for one line within `room`. `can()` is true.
    #[inline]
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8, line: Axis, room: Room) -> usize {
        // A step reads and writes a whole window, which may be larger than its groups. The next steps overwrite the
        // excess.
        let stride = line.stride * self.groups as isize;
        let first = from.wrapping_offset(self.low);
        let last = first.wrapping_offset(stride * (self.all as isize - 1));
        let behind = to.wrapping_add((self.all - 1) * self.bytes + WINDOW);
        let roomy = first.min(last) >= room.low
            && first.max(last).wrapping_add(WINDOW) <= room.end
            && behind.cast_const() <= room.to_end.cast_const();
        let steps = if roomy { self.all } else { self.within };
        if steps > 0 {
            // SAFETY: the windows are between the first and the last byte of all elements, or of the line, according to
            // the chosen number of steps. The memory between elements belongs to the same object. The caller guarantees
            // that the processor supports the instruction.
            unsafe { shuffle(&self.table, steps, from.offset(self.low), stride, to, self.bytes) };
        }
        line.count.min(steps * self.groups)
    }
}

/// Returns whether this processor supports the shuffle.
pub fn can() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("ssse3");
    #[cfg(not(target_arch = "x86_64"))]
    cfg!(target_arch = "aarch64")
}

/// Moves windows of `from`, `stride` bytes apart, through the table to windows of `to`, `bytes` apart.
///
/// # Safety
/// All windows are readable and writable, respectively. The processor supports SSSE3.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
unsafe fn shuffle(table: &[u8; WINDOW], steps: usize, from: *const u8, stride: isize, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_shuffle_epi8, _mm_storeu_si128};

    // SAFETY: guaranteed by the caller.
    unsafe {
        let table = _mm_loadu_si128(table.as_ptr().cast::<__m128i>());
        for step in 0..steps {
            let window = _mm_loadu_si128(from.offset(step as isize * stride).cast::<__m128i>());
            _mm_storeu_si128(to.add(step * bytes).cast::<__m128i>(), _mm_shuffle_epi8(window, table));
        }
    }
}

/// Moves windows of `from`, `stride` bytes apart, through the table to windows of `to`, `bytes` apart.
///
/// # Safety
/// All windows are readable and writable, respectively.
#[cfg(target_arch = "aarch64")]
unsafe fn shuffle(table: &[u8; WINDOW], steps: usize, from: *const u8, stride: isize, to: *mut u8, bytes: usize) {
    use std::arch::aarch64::{vld1q_u8, vqtbl1q_u8, vst1q_u8};

    // SAFETY: guaranteed by the caller.
    unsafe {
        let table = vld1q_u8(table.as_ptr());
        for step in 0..steps {
            let window = vld1q_u8(from.offset(step as isize * stride));
            vst1q_u8(to.add(step * bytes), vqtbl1q_u8(window, table));
        }
    }
}

/// Other processors copy element by element.
///
/// # Safety
/// Never called, because `can()` is false.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn shuffle(_: &[u8; WINDOW], _: usize, _: *const u8, _: isize, _: *mut u8, _: usize) {
    unreachable!()
}
