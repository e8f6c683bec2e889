//! A number in shared memory that shows when something else was written over it.

/// Most bits of a checked number.
const BITS: u32 = 48;
/// An odd multiplier whose high bits depend on all bits of the number (the golden ratio of 2^64).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number below 2^48 and 16 bits that follow from it, in one word that is stored and loaded at once.
///
/// The number 0 is the word 0, which is what fresh memory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked;

impl Checked {
    /// The word for a number; higher bits of it are cut off.
    #[inline]
    pub fn pack(number: u64) -> u64 {
        let number = number & ((1 << BITS) - 1);
        number | (Self::check(number) << BITS)
    }

    /// The number in a word; None where the word is none that `pack` makes.
    #[inline]
    pub fn unpack(word: u64) -> Option<u64> {
        let number = word & ((1 << BITS) - 1);
        (Self::check(number) == word >> BITS).then_some(number)
    }

    #[inline]
    fn check(number: u64) -> u64 {
        number.wrapping_mul(MIX) >> BITS
    }
}

#[cfg(test)]
mod tests {
    use super::Checked;

    #[test]
    fn what_was_packed_is_unpacked() {
        for number in [0, 1, 2, 0xffff, 1 << 32, (1 << 48) - 1] {
            assert_eq!(Checked::unpack(Checked::pack(number)), Some(number));
        }
        assert_eq!(Checked::pack(0), 0);
    }

    #[test]
    fn a_word_in_which_one_bit_changed_is_refused() {
        for number in [0, 1, 77, 0x1234_5678_9abc, (1 << 48) - 1] {
            let word = Checked::pack(number);
            for bit in 0..64 {
                assert_eq!(Checked::unpack(word ^ (1 << bit)), None, "bit {bit} of {number:#x}");
            }
        }
    }
}
