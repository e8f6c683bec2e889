//! Detects accidental damage to shared memory, such as writes through a wrong pointer.
//!
//! For a large buffer, only samples of the bytes are checked, because a full checksum would cost as much as copying the
//! buffer.

/// This factor is odd, so a change within one byte of a value always changes the check bits of the value.
const WORD: u64 = 0x9e37_79b9_7f4a_7c15;
/// This constant makes the check bits of the value 0 nonzero, so that erased memory (zeros) is detected as damaged.
const NOT_ZERO: u64 = 0x5bd1;
/// The checksum combines each word with a key before it multiplies two words, because a zero word would otherwise hide
/// the second word. `STEPS` changes the keys after each pair of words, so that the checksum depends on the order of
/// words.
const KEYS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];
const STEPS: [u64; 2] = [0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

pub const SEALED_BITS: u32 = 48;
const SEALED: u64 = (1 << SEALED_BITS) - 1;

/// Returns a word with the lower 48 bits of `value`, and 16 check bits in the upper bits.
///
/// [`open`] detects every change within a single byte of a sealed word, and all but 1 in 65536 of the changes to
/// several bytes.
#[inline]
pub const fn seal(value: u64) -> u64 {
    let value = value & SEALED;
    value | (((value.wrapping_mul(WORD) >> SEALED_BITS) ^ NOT_ZERO) << SEALED_BITS)
}

/// Returns the lower 48 bits of a word from [`seal`], or None if the check bits do not match.
#[inline]
pub const fn open(word: u64) -> Option<u64> {
    if seal(word) == word { Some(word & SEALED) } else { None }
}

/// Returns the smallest number from `known` on with the same lower 48 bits as `word`, or None if `word` is damaged.
#[inline]
pub fn open_after(known: u64, word: u64) -> Option<u64> {
    known.checked_add(open(word)?.wrapping_sub(known) & SEALED)
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
pub(crate) fn keyed(value: u64, key: u64) -> u64 {
    fold(value ^ KEYS[0], key ^ KEYS[1]) >> 34
}

/// The checksum of a message, which multiplies the words in pairs and adds the products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checksum {
    sum: u64,
    keys: [u64; 2],
}

impl Checksum {
    /// Begins a checksum with the position of the message, so that remains of an older message in the ring are not
    /// mistaken for the new message.
    #[inline]
    pub fn at(position: u64) -> Self {
        Self { sum: 0, keys: KEYS }.words(position, 0)
    }

    #[inline]
    pub fn words(self, a: u64, b: u64) -> Self {
        let [first, second] = self.keys;
        Self {
            sum: self.sum.wrapping_add(fold(a ^ first, b ^ second)),
            keys: [first.wrapping_add(STEPS[0]), second.wrapping_add(STEPS[1])],
        }
    }

    /// Copies `len` bytes from `from` to `to`, and adds the bytes to the checksum.
    ///
    /// Each byte is read only once, so the checksum covers the copied bytes even if another process changes the source.
    ///
    /// The method writes whole words, so up to 7 bytes after the copied bytes are overwritten.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes rounded up to a multiple of 8. `from` must be readable for `len` bytes
    /// and, if `PADDED` is true, up to the next multiple of 8. The ranges at `from` and `to` must not overlap.
    #[inline]
    pub unsafe fn copy<const PADDED: bool>(mut self, from: *const u8, to: *mut u8, len: usize) -> Self {
        let mut at = 0;
        // SAFETY: all accesses except for the last access are within the first `len` bytes of `from` and `to`. The last
        // access may exceed the `len` bytes, because the caller guarantees memory for a whole word.
        unsafe {
            while len - at >= 16 {
                let [a, b] = pass_on::<[u64; 2]>(from, to, at);
                self = self.words(a, b);
                at += 16;
            }
            if len - at >= 8 {
                self = self.words(pass_on::<u64>(from, to, at), 0);
                at += 8;
            }
            let rest = len - at;
            if rest > 0 {
                let word = if PADDED { pass_on::<u64>(from, to, at) } else { last_word(from, len) };
                let word = word & (u64::MAX >> (64 - 8 * rest));
                if !PADDED {
                    to.add(at).cast::<u64>().write_unaligned(word);
                }
                self = self.words(word, 0);
            }
        }
        self
    }

    #[inline]
    pub fn since(self, before: Self) -> u64 {
        self.sum.wrapping_sub(before.sum)
    }

    #[inline]
    pub fn finish(self) -> u32 {
        (self.sum ^ (self.sum >> 32)) as u32
    }
}

/// # Safety
/// A value of type `T` at offset `at` must be readable in `from` and writable in `to`.
#[inline(always)]
unsafe fn pass_on<T: Copy>(from: *const u8, to: *mut u8, at: usize) -> T {
    // SAFETY: the caller guarantees that the value is readable in `from` and writable in `to`.
    unsafe {
        let piece = from.add(at).cast::<T>().read_unaligned();
        to.add(at).cast::<T>().write_unaligned(piece);
        piece
    }
}

/// Returns a word with the last `len % 8` bytes as its lowest bytes, and zeros as its other bytes.
///
/// # Safety
/// `from` must be readable for `len` bytes.
#[inline]
unsafe fn last_word(from: *const u8, len: usize) -> u64 {
    let rest = len % 8;
    // SAFETY: the code reads only bytes within the `len` bytes that the caller guarantees to be readable.
    unsafe {
        if len >= 8 {
            return from.add(len - 8).cast::<u64>().read_unaligned() >> (64 - 8 * rest);
        }
        (0..rest).rev().fold(0, |word, index| word << 8 | u64::from(from.add(index).read()))
    }
}

const SAMPLES: usize = 16;

/// Returns 16 check bits that depend on the length of a buffer and on up to 16 of its words.
///
/// # Safety
/// `data` must be readable for `len` bytes.
pub unsafe fn sample(data: *const u8, len: usize) -> u64 {
    let mut sum = fold(len as u64 ^ KEYS[0], KEYS[1]);
    let mut look = |at: usize| {
        // SAFETY: at least 8 bytes follow offset `at`, and the caller guarantees that the buffer is readable.
        let word = unsafe { data.add(at).cast::<u64>().read_unaligned() };
        sum = fold(sum ^ word, STEPS[0]).rotate_left(23);
    };
    if len >= 8 {
        let last = len - 8;
        (0..SAMPLES).for_each(|index| look(index * last / (SAMPLES - 1)));
    } else {
        // SAFETY: `at` is less than `len`, and the caller guarantees that `len` bytes are readable.
        (0..len).for_each(|at| sum = fold(sum ^ u64::from(unsafe { data.add(at).read() }), STEPS[0]));
    }
    sum >> 48
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Digest {
    buffers: u64,
}

impl Digest {
    #[inline]
    pub fn buffer(&mut self, word: u64) {
        self.buffers = fold(self.buffers ^ KEYS[1], word ^ KEYS[0]);
    }

    #[inline]
    pub fn finish(self, payload: u64, len: usize) -> u64 {
        self.buffers ^ payload ^ (len as u64).wrapping_mul(WORD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_within_one_byte_of_a_value_changes_the_check_bits() {
        for byte in 0..6 {
            for change in 1..=255_u64 {
                let moved = (change << (8 * byte)).wrapping_mul(WORD);
                assert!(moved.min(moved.wrapping_neg()) >= 1 << SEALED_BITS, "byte {byte}, change {change}");
            }
        }
    }

    #[test]
    fn every_single_bit_change_of_a_message_is_detected() {
        for len in [0_usize, 1, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 200] {
            let padded = len.next_multiple_of(8);
            let mut bytes: Vec<u8> = (0..padded).map(|index| (index * 37 + 1) as u8).collect();
            let mut copy = vec![0; padded];
            let mut sum = |position, word, bytes: &[u8]| {
                let start = Checksum::at(position).words(word, 3);
                // SAFETY: `bytes` and `copy` are as long as `len` rounded up to a multiple of 8.
                unsafe { start.copy::<true>(bytes.as_ptr(), copy.as_mut_ptr(), len).finish() }
            };
            let right = sum(4096, 0, &bytes);
            for bit in 0..64 {
                assert_ne!(sum(4096 ^ 1 << bit, 0, &bytes), right, "position, bit {bit}");
                assert_ne!(sum(4096, 1 << bit, &bytes), right, "word, bit {bit}");
            }
            for bit in 0..8 * padded {
                bytes[bit / 8] ^= 1 << (bit % 8);
                let changed = sum(4096, 0, &bytes) != right;
                assert_eq!(changed, bit < 8 * len, "{len} bytes, bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(sum(4096, 0, &bytes), right);
            assert_eq!(copy[..len], bytes[..len], "copied as they were summed");

            let exact = bytes[..len].to_vec();
            let mut copy = vec![255; padded];
            // SAFETY: `exact` has `len` bytes, and `copy` has the padded length.
            let summed = unsafe {
                Checksum::at(4096).words(0, 3).copy::<false>(exact.as_ptr(), copy.as_mut_ptr(), len).finish()
            };
            assert_eq!((summed, &copy[..len]), (right, &exact[..]));
            assert!(copy[len..].iter().all(|&byte| byte == 0));
        }
    }
}
