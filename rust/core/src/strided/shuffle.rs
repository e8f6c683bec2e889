//! Copying short elements of a line 16 bytes at a time: a step reads a window of memory, moves the bytes of as many
//! elements as lie within it to where they belong, and writes a window.
//!
//! x86-64 has the shuffle since SSSE3, which is looked for when the program runs; aarch64 always has it.

use super::Axis;

/// Bytes that one step reads, and writes.
pub const WINDOW: usize = 16;

/// Memory that steps may touch: of the source from the lowest byte to behind the highest, of the target up to its end.
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
    /// Steps that leave no group of the line to others; the last one may read and write beyond the line.
    all: usize,
    /// Steps that stay within the line.
    within: usize,
    /// First byte of what a step reads, as seen from its first group.
    low: isize,
    /// Which byte of what was read goes where.
    table: [u8; WINDOW],
}

impl Shuffle {
    /// None if a step would copy too little, or nothing.
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
            return None; // a single group of a usual size is copied as quickly by itself
        }
        // The part of its windows that a step covers; the rest of them lies in groups that come later. As many groups
        // at the end of a line are left to others if its steps are to stay within it.
        let covered = bytes_of_step.min((groups - 1) * reach + inner);
        let rest = (WINDOW - covered).div_ceil(reach.min(bytes));
        // The window begins, or for a line that goes downwards ends, with its first group: what it covers beyond its
        // last one is where the line goes on.
        let span = group.stride * (group.count as isize - 1);
        let low = if line.stride > 0 { span.min(0) } else { span.max(0) + run as isize - WINDOW as isize };
        // A byte with its highest bit set makes a zero; nobody reads what such a place gets.
        let mut table = [0x80; WINDOW];
        for (index, place) in table.iter_mut().take(bytes_of_step).enumerate() {
            let (element, byte) = (index / run, index % run);
            let at = line.stride * (element / group.count) as isize + group.stride * (element % group.count) as isize;
            *place = (at - low) as u8 + byte as u8;
        }
        let (all, within) = (line.count.div_ceil(groups), line.count.saturating_sub(rest) / groups);
        Some(Self { groups, bytes: bytes_of_step, all, within, low, table })
    }

    /// Copies groups of the line, from its first one on, and returns their number: all of them, or if the memory
    /// beyond the line is not ours, as many as can be without touching it. Behind the line, the target may be written
    /// over.
    ///
    /// # Safety
    /// As for `Strided::copy`, for one line of what lies in this room; and `can()` is true.
    #[inline]
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8, line: Axis, room: Room) -> usize {
        // A step reads and writes a whole window, of which its groups may be the smaller part. The next steps write over
        // the rest.
        let stride = line.stride * self.groups as isize;
        let first = from.wrapping_offset(self.low);
        let last = first.wrapping_offset(stride * (self.all as isize - 1));
        let behind = to.wrapping_add((self.all - 1) * self.bytes + WINDOW);
        let roomy = first.min(last) >= room.low
            && first.max(last).wrapping_add(WINDOW) <= room.end
            && behind.cast_const() <= room.to_end.cast_const();
        let steps = if roomy { self.all } else { self.within };
        if steps > 0 {
            // SAFETY: the windows lie between the first and the last byte of all elements, or of the line, as they were
            // counted for: between its elements is memory of the same object. The processor can, says the caller.
            unsafe { shuffle(&self.table, steps, from.offset(self.low), stride, to, self.bytes) };
        }
        line.count.min(steps * self.groups)
    }
}

/// Whether this processor can.
pub fn can() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("ssse3");
    #[cfg(not(target_arch = "x86_64"))]
    cfg!(target_arch = "aarch64")
}

/// Takes a window of `from` after the other, `stride` bytes apart, through the table to windows of `to`, `bytes` apart.
///
/// # Safety
/// All windows are readable, or writable; and the processor has SSSE3.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
unsafe fn shuffle(table: &[u8; WINDOW], steps: usize, from: *const u8, stride: isize, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_shuffle_epi8, _mm_storeu_si128};

    // SAFETY: as promised by the caller.
    unsafe {
        let table = _mm_loadu_si128(table.as_ptr().cast::<__m128i>());
        for step in 0..steps {
            let window = _mm_loadu_si128(from.offset(step as isize * stride).cast::<__m128i>());
            _mm_storeu_si128(to.add(step * bytes).cast::<__m128i>(), _mm_shuffle_epi8(window, table));
        }
    }
}

/// Takes a window of `from` after the other, `stride` bytes apart, through the table to windows of `to`, `bytes` apart.
///
/// # Safety
/// All windows are readable, or writable.
#[cfg(target_arch = "aarch64")]
unsafe fn shuffle(table: &[u8; WINDOW], steps: usize, from: *const u8, stride: isize, to: *mut u8, bytes: usize) {
    use std::arch::aarch64::{vld1q_u8, vqtbl1q_u8, vst1q_u8};

    // SAFETY: as promised by the caller.
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
/// `can()` is true, which it never is here.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn shuffle(_: &[u8; WINDOW], _: usize, _: *const u8, _: isize, _: *mut u8, _: usize) {
    unreachable!()
}
