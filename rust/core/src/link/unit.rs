//! The form of a unit, which crosses a link, in its ring.
//!
//! A *unit* is an item, an end, an error, a message, or a fragment of something too large for the arena. In the ring it
//! is a [`UnitHeader`], a table of its blocks and an inline payload, contiguous and padded to 8 bytes; if a unit
//! does not fit before the ring's end, a pad of one word skips the rest. Each carries a checksum of all that, and of
//! its position.

use crate::error::Corrupted;
use crate::integrity::{Checksum, sample};

/// Kind of a unit that carries a piece of a buffer that fits no block.
pub(crate) const KIND_FRAGMENT: u16 = u16::MAX;
/// Kind of the first of such units: fragments before it belong to a unit that was given up.
pub(crate) const KIND_FIRST_FRAGMENT: u16 = u16::MAX - 1;
/// Highest kind that users may give.
pub const LAST_USER_KIND: u16 = u16::MAX - 2;

/// Set in the kind of an item whose bytes may differ from run to run although the item is the same: pickles do.
pub const OPAQUE: u16 = 0x200;

/// Bits of a buffer's length in the block table; above them stands its sample.
const LEN_BITS: u32 = 48;

/// The length of a buffer as it stands in the block table, with a sample of its bytes.
///
/// # Safety
/// `data` is readable for `len` bytes.
pub unsafe fn sampled_len(data: *const u8, len: usize) -> u64 {
    // SAFETY: as promised by the caller.
    len as u64 | unsafe { sample(data, len) } << LEN_BITS
}

/// The length alone.
#[inline]
pub(crate) fn bare_len(sampled: u64) -> u64 {
    sampled & ((1 << LEN_BITS) - 1)
}

/// Start of every unit in the ring; words as the machine has them, both sides being one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnitHeader {
    /// Bytes from this header to the next one.
    pub total: u32,
    /// Bytes of the inline payload.
    pub payload: u32,
    /// The shard that the unit is of, counted in the process that sends it.
    pub shard: u16,
    pub kind: u16,
    /// Entries of the block table, 16 bytes each: offset and length.
    pub blocks: u16,
    pub epoch: u64,
}

/// Three words: total and checksum; padding, shard, kind and blocks; epoch. The length of the payload is the total without
/// the header, the block table and the padding.
pub(crate) const UNIT_HEADER: u64 = 24;
/// Length of the block table's entries.
pub(crate) const BLOCK_ENTRY: u64 = 16;
/// Set in the total, which is a multiple of 8, of a pad.
const PAD: u32 = 1;

/// The meaning of the first word at a unit's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// The ring's end is to be skipped; checked.
    Pad,
    /// A unit of `total` bytes; not checked beyond that there are so many.
    Unit { total: u32, check: u32 },
}

impl First {
    /// The word that skips `total` bytes from `position` to the ring's end.
    pub fn pad(position: u64, total: u64) -> u64 {
        let total = total as u32 | PAD;
        word(total, pad_check(position, total))
    }

    /// Reads the first word of what begins at `position`, `available` bytes before the end of what was published and
    /// `until_wrap` before the ring's.
    #[inline]
    pub fn read(first: u64, position: u64, available: u64, until_wrap: u64) -> Result<Self, Corrupted> {
        let (total, check) = (first as u32, (first >> 32) as u32);
        let len = u64::from(total & !PAD);
        if total & PAD != 0 && len == until_wrap && len <= available && check == pad_check(position, total) {
            return Ok(Self::Pad);
        }
        if !len.is_multiple_of(8) || len < UNIT_HEADER || len > available || len > until_wrap || total & PAD != 0 {
            return Err(Corrupted("a unit does not fit what was published"));
        }
        Ok(Self::Unit { total, check })
    }
}

fn pad_check(position: u64, total: u32) -> u32 {
    Checksum::at(position).words(u64::from(total), 0).finish()
}

fn word(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl UnitHeader {
    /// Length of a unit, or None if it is beyond what `u32` and `u16` can say.
    pub fn new(shard: u16, kind: u16, epoch: u64, blocks: usize, payload: usize) -> Option<Self> {
        let total = (UNIT_HEADER + BLOCK_ENTRY * blocks as u64 + payload as u64).next_multiple_of(8);
        Some(Self {
            total: u32::try_from(total).ok()?,
            payload: u32::try_from(payload).ok()?,
            shard,
            kind,
            blocks: u16::try_from(blocks).ok()?,
            epoch,
        })
    }

    /// Bytes of the header, the block table and the payload.
    #[inline]
    fn content(self) -> u64 {
        UNIT_HEADER + BLOCK_ENTRY * u64::from(self.blocks) + u64::from(self.payload)
    }

    /// The header's three words, with the checksum `check`.
    #[inline]
    pub fn words(self, check: u32) -> [u64; 3] {
        let padding = u64::from(self.total).wrapping_sub(self.content()) as u32 & 7;
        let what = u32::from(self.kind) | u32::from(self.blocks) << 16;
        [word(self.total, check), word(padding | u32::from(self.shard) << 16, what), self.epoch]
    }

    /// The header of a unit of `total` bytes, out of its other two words.
    #[inline]
    pub fn from_words(total: u32, [sizes, epoch]: [u64; 2]) -> Result<Self, Corrupted> {
        let [padding, shard, kind, blocks] = [0, 16, 32, 48].map(|bits| (sizes >> bits) as u16);
        let around = UNIT_HEADER + BLOCK_ENTRY * u64::from(blocks) + u64::from(padding);
        let payload = u64::from(total).checked_sub(around).filter(|_| padding < 8);
        let payload = payload.ok_or(Corrupted("a unit is not as long as it says"))?;
        Ok(Self { total, payload: payload as u32, shard, kind, blocks, epoch })
    }

    /// The checksum of a unit at `position`, to be continued with its block table and its payload.
    #[inline]
    pub fn checksum(self, position: u64) -> Checksum {
        let [_, sizes, epoch] = self.words(0);
        Checksum::at(position).words(sizes ^ u64::from(self.payload) << 3, epoch)
    }
}
