//! Checks that tell damage from data in shared memory: of single words, and of whole units.
//!
//! They are for accidents (a stray pointer, a library that writes where it must not), not against an adversary. What they
//! cover are the words and units that the protocol relies on; the bytes of blocks are the user's and have none, as it would
//! cost as much as copying them.

/// Odd, and such that no change within one byte of a value leaves its check as it was; a test goes through them all.
const WORD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Keeps a word of zeros, which is what wiped memory holds, from being a valid one.
const NOT_ZERO: u64 = 0x5bd1;
/// What the operands of the multiplications are mixed with, so that zeros in the data do not make them zero: digits of pi.
const KEYS: [u64; 5] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89, 0x4528_21e6_38d0_1377];

/// Bits of a sealed value; the rest is its check.
pub const SEALED_BITS: u32 = 48;
const SEALED: u64 = (1 << SEALED_BITS) - 1;

/// A word for shared memory: the lower 48 bits of `value`, and above them a check of these.
///
/// One word, so that writing and reading it is atomic; any change within one of its bytes is noticed, any other one with a
/// probability of 1 - 2^-16.
#[inline]
pub const fn seal(value: u64) -> u64 {
    let value = value & SEALED;
    value | (((value.wrapping_mul(WORD) >> SEALED_BITS) ^ NOT_ZERO) << SEALED_BITS)
}

/// The lower 48 bits of the value behind a sealed word, or None where the word is damaged.
#[inline]
pub const fn open(word: u64) -> Option<u64> {
    if seal(word) == word { Some(word & SEALED) } else { None }
}

/// The value next to `known` (at or after it, by less than 2^48) whose sealed word this is, or None where it is damaged.
#[inline]
pub const fn open_after(known: u64, word: u64) -> Option<u64> {
    match open(word) {
        Some(low) => known.checked_add(low.wrapping_sub(known) & SEALED),
        None => None,
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Thirty bits that depend on a value and on its place.
#[inline]
pub(crate) fn placed(value: u64, place: u64) -> u64 {
    fold(value ^ KEYS[0], place ^ KEYS[1]) >> 34
}

/// The checksum of a unit: of its place, its header, its block table and its payload, in this order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checksum(u64);

impl Checksum {
    /// Begins with the position of the unit, which makes what is left of the ring's last lap invalid.
    #[inline]
    pub fn at(position: u64) -> Self {
        Self(position ^ KEYS[0])
    }

    /// Adds two words.
    #[inline]
    pub fn words(self, a: u64, b: u64) -> Self {
        Self(fold(self.0 ^ a, b ^ KEYS[1]))
    }

    /// Adds bytes, the number of which the words before must tell.
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // SAFETY: the slice is readable, and nothing is written.
        unsafe { self.pass::<false>(bytes.as_ptr(), std::ptr::null_mut(), bytes.len()) }
    }

    /// Copies `len` bytes and adds what was copied: each byte is read once, so that no later change of the source goes
    /// unnoticed. In one pass, as reading the copy anew would wait for its stores.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
    #[inline]
    pub unsafe fn copy(self, from: *const u8, to: *mut u8, len: usize) -> Self {
        // SAFETY: as promised by the caller.
        unsafe { self.pass::<true>(from, to, len) }
    }

    /// # Safety
    /// As for `copy`; `to` is not used where nothing is to be copied.
    #[inline]
    unsafe fn pass<const COPY: bool>(mut self, from: *const u8, to: *mut u8, len: usize) -> Self {
        let mut at = 0;
        // SAFETY: every piece lies within the first `len` bytes.
        unsafe {
            if len >= 64 {
                (self, at) = self.stripes::<COPY>(from, to, len);
            }
            while len - at >= 16 {
                let [a, b] = pass_on::<COPY, [u64; 2]>(from, to, at);
                self = self.words(a, b);
                at += 16;
            }
            if len - at >= 8 {
                self = self.words(pass_on::<COPY, u64>(from, to, at), 0);
                at += 8;
            }
            if at < len {
                let mut last = [0; 8];
                for (index, byte) in last[..len - at].iter_mut().enumerate() {
                    *byte = pass_on::<COPY, u8>(from, to, at + index);
                }
                self = self.words(u64::from_ne_bytes(last), 0);
            }
        }
        self
    }

    /// Adds all whole pieces of 64 bytes, whose multiplications do not wait for each other, and says how many bytes that were.
    ///
    /// # Safety
    /// As for `pass`.
    unsafe fn stripes<const COPY: bool>(self, from: *const u8, to: *mut u8, len: usize) -> (Self, usize) {
        let mut lanes = [self.0, self.0 ^ KEYS[2], self.0 ^ KEYS[3], self.0 ^ KEYS[4]];
        let mut at = 0;
        while len - at >= 64 {
            for lane in &mut lanes {
                // SAFETY: at least the rest of 64 bytes is left.
                let [a, b] = unsafe { pass_on::<COPY, [u64; 2]>(from, to, at) };
                *lane = fold(*lane ^ a, b ^ KEYS[1]);
                at += 16;
            }
        }
        (Self(lanes[0]).words(lanes[1], lanes[2]).words(lanes[3], 0), at)
    }

    /// The checksum so far.
    #[inline]
    pub fn finish(self) -> u32 {
        (self.0 ^ (self.0 >> 32)) as u32
    }
}

/// Reads what stands `at` bytes behind `from`, and writes it as far behind `to` where it is to be copied.
///
/// # Safety
/// The place is readable behind `from` and, to copy, writable behind `to`.
#[inline(always)]
unsafe fn pass_on<const COPY: bool, T: Copy>(from: *const u8, to: *mut u8, at: usize) -> T {
    // SAFETY: as promised by the caller.
    unsafe {
        let piece = from.add(at).cast::<T>().read_unaligned();
        if COPY {
            to.add(at).cast::<T>().write_unaligned(piece);
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_word_comes_back_and_no_change_within_a_byte_of_it_is_missed() {
        for value in [0, 1, 40, 0x1234_5678, SEALED, SEALED - 7, 1 << 47] {
            let word = seal(value);
            assert_eq!(open(word), Some(value));
            for byte in 0..8 {
                for mask in 1..=255_u64 {
                    assert_eq!(open(word ^ (mask << (8 * byte))), None, "{value:#x}, byte {byte} ^ {mask:#x}");
                }
            }
        }
        // Whatever the value: a change within a byte moves the product by one of these, and further than the bits below
        // the check can hide.
        for byte in 0..6 {
            for change in 1..=255_u64 {
                let moved = (change << (8 * byte)).wrapping_mul(WORD);
                assert!(moved.min(moved.wrapping_neg()) >= 1 << SEALED_BITS, "byte {byte}, change {change}");
            }
        }
        assert_eq!(open(0), None, "wiped memory");
        assert_eq!(open(u64::MAX), None);
    }

    #[test]
    fn values_beyond_what_a_word_holds_go_on_from_what_is_known() {
        let known = (7 << SEALED_BITS) - 3;
        assert_eq!(open_after(known, seal(known)), Some(known));
        assert_eq!(open_after(known, seal(known + 100)), Some(known + 100));
        assert_eq!(open_after(known, seal(known - 1)), Some(known + SEALED), "far ahead rather than behind");
        assert_eq!(open_after(u64::MAX, seal(u64::MAX - 1)), None);
    }

    #[test]
    fn no_single_bit_of_a_unit_can_change_unnoticed() {
        for len in [0, 1, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 200] {
            let mut bytes: Vec<u8> = (0..len).map(|index| (index * 37) as u8).collect();
            let sum = |position, word, bytes: &[u8]| Checksum::at(position).words(word, 3).bytes(bytes).finish();
            let right = sum(4096, 0, &bytes);
            for bit in 0..64 {
                assert_ne!(sum(4096 ^ 1 << bit, 0, &bytes), right, "position, bit {bit}");
                assert_ne!(sum(4096, 1 << bit, &bytes), right, "word, bit {bit}");
            }
            for bit in 0..8 * len {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(sum(4096, 0, &bytes), right, "{len} bytes, bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let mut copy = vec![0; len];
            // SAFETY: both have `len` bytes.
            let copied =
                unsafe { Checksum::at(4096).words(0, 3).copy(bytes.as_ptr(), copy.as_mut_ptr(), len).finish() };
            assert_eq!((copied, &copy), (right, &bytes), "copied as they were summed");
        }
    }
}
