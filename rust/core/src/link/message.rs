//! Defines the format of a message in the ring of a link.
//!
//! A message is an item, the end of a stream, an error, a snapshot, or a fragment of a large buffer. The bytes of a
//! message are contiguous in the ring. If a message does not fit before the end of the ring, padding fills the bytes up
//! to this end.

use crate::error::Corrupted;
use crate::integrity::{Checksum, sample};

pub(crate) const KIND_FRAGMENT: u16 = u16::MAX;
/// The message kind of the first fragment of a buffer. On receiving this fragment, the consumer drops older fragments,
/// which belong to a message that the producer has abandoned.
pub(crate) const KIND_FIRST_FRAGMENT: u16 = u16::MAX - 1;

/// The flag, in the kind of a message, of items that may be encoded as different bytes in another run, for example
/// because they are pickled.
pub const OPAQUE: u16 = 0x200;

/// The number of bits of a buffer's length. The upper 16 bits of a length word contain check bits of the buffer's
/// bytes.
const LEN_BITS: u32 = 48;

/// Returns the length of a buffer, with check bits of the buffer's bytes in the upper bits.
///
/// # Safety
/// `data` must be readable for `len` bytes.
pub unsafe fn sampled_len(data: *const u8, len: usize) -> u64 {
    // SAFETY: the caller guarantees that `data` is readable for `len` bytes.
    len as u64 | unsafe { sample(data, len) } << LEN_BITS
}

#[inline]
pub(crate) fn bare_len(sampled: u64) -> u64 {
    sampled & ((1 << LEN_BITS) - 1)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageHeader {
    pub total: u32,
    pub payload: u32,
    pub shard: u16,
    pub kind: u16,
    pub blocks: u16,
    pub epoch: u64,
}

/// The size of a message header in bytes. The first word of a header contains the length and the checksum. The second
/// word contains the shard, the kind and the number of blocks. The third word contains the epoch.
pub(crate) const MESSAGE_HEADER: u64 = 24;
pub(crate) const BLOCK_ENTRY: u64 = 16;
/// A flag in the length field that marks padding. The flag uses the lowest bit, which is 0 in every length, because
/// lengths are multiples of 8.
const PAD: u32 = 1;

/// Returns the word that marks `total` bytes of padding from `position` to the end of the ring.
pub(crate) fn padding(position: u64, total: u64) -> u64 {
    let total = total as u32 | PAD;
    word(total, pad_check(position, total))
}

/// Decodes the first word of a message at `position`. Returns the message's length and checksum, or None if the word
/// marks padding.
///
/// `available` is the number of bytes that the producer has published from `position` on, and `until_wrap` is the
/// number of bytes from `position` to the end of the ring. The caller must verify the returned checksum.
#[inline]
pub(crate) fn read_first(
    first: u64,
    position: u64,
    available: u64,
    until_wrap: u64,
) -> Result<Option<(u32, u32)>, Corrupted> {
    let (total, check) = (first as u32, (first >> 32) as u32);
    let len = u64::from(total & !PAD);
    if total & PAD != 0 && len == until_wrap && len <= available && check == pad_check(position, total) {
        return Ok(None);
    }
    if !len.is_multiple_of(8) || len < MESSAGE_HEADER || len > available || len > until_wrap || total & PAD != 0 {
        return Err(Corrupted("a message is longer than the published data"));
    }
    Ok(Some((total, check)))
}

fn pad_check(position: u64, total: u32) -> u32 {
    Checksum::at(position).words(u64::from(total), 0).finish()
}

fn word(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl MessageHeader {
    pub fn new(shard: u16, kind: u16, epoch: u64, blocks: usize, payload: usize) -> Option<Self> {
        let total = (MESSAGE_HEADER + BLOCK_ENTRY * blocks as u64 + payload as u64).next_multiple_of(8);
        Some(Self {
            total: u32::try_from(total).ok()?,
            payload: u32::try_from(payload).ok()?,
            shard,
            kind,
            blocks: u16::try_from(blocks).ok()?,
            epoch,
        })
    }

    #[inline]
    fn content(self) -> u64 {
        MESSAGE_HEADER + BLOCK_ENTRY * u64::from(self.blocks) + u64::from(self.payload)
    }

    #[inline]
    pub fn words(self, check: u32) -> [u64; 3] {
        let padding = u64::from(self.total).wrapping_sub(self.content()) as u32 & 7;
        let what = u32::from(self.kind) | u32::from(self.blocks) << 16;
        [word(self.total, check), word(padding | u32::from(self.shard) << 16, what), self.epoch]
    }

    #[inline]
    pub fn from_words(total: u32, [sizes, epoch]: [u64; 2]) -> Result<Self, Corrupted> {
        let [padding, shard, kind, blocks] = [0, 16, 32, 48].map(|bits| (sizes >> bits) as u16);
        let around = MESSAGE_HEADER + BLOCK_ENTRY * u64::from(blocks) + u64::from(padding);
        let payload = u64::from(total).checked_sub(around).filter(|_| padding < 8);
        let payload = payload.ok_or(Corrupted("the length of a message does not match its parts"))?;
        Ok(Self { total, payload: payload as u32, shard, kind, blocks, epoch })
    }

    #[inline]
    pub fn checksum(self, position: u64) -> Checksum {
        let [_, sizes, epoch] = self.words(0);
        Checksum::at(position).words(sizes ^ u64::from(self.payload) << 3, epoch)
    }
}
