//! The writer's state of a link, which determines how many items the reader wants.

use super::grant::{Grant, Reader};
use super::stream::Stream;

/// Whether a writer may send its next item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permit {
    /// The reader wants the item.
    Now,
    /// The reader does not accept the item yet, because its window is full or because it is still in an earlier stream.
    Wait,
    /// The reader wants no more items of this stream, so the item is dropped.
    Unwanted,
    /// The reader has the item from an earlier run of this stream, so the item is recomputed, counted and dropped.
    Again,
}

/// Limits how many bytes of large buffers a writer may have in flight.
///
/// A window limits the number of items, but large items may need gigabytes. When the reader has to wait, the limit
/// doubles. If the reader has taken fewer bytes than the limit since its last wait, the limit halves instead, because a
/// higher limit would not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ahead {
    allowed: u64,
    taken: u64,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { allowed: Self::LEAST, taken: 0 }
    }
}

impl Ahead {
    /// The lowest limit for bytes in flight.
    pub const LEAST: u64 = 64 << 20;
    const MOST: u64 = 1 << 40;

    pub fn allowed(self) -> u64 {
        self.allowed
    }

    /// Counts bytes that the reader has taken.
    #[inline]
    pub fn take(&mut self, bytes: u64) {
        self.taken = self.taken.saturating_add(bytes);
    }

    /// Records that the reader waits for the writer, and returns whether the limit has changed.
    pub fn wait(&mut self) -> bool {
        let before = self.allowed;
        let taken = std::mem::take(&mut self.taken);
        self.allowed = if taken >= self.allowed { 2 * self.allowed } else { self.allowed / 2 };
        self.allowed = self.allowed.clamp(Self::LEAST, Self::MOST);
        self.allowed != before
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Sending {
    stream: Stream,
    sent: u32,
    /// The number of further items that the reader's grant allowed when the writer last read it.
    credit: u32,
    owed: u64,
}

impl Sending {
    pub fn begin(&mut self, stream: Stream) {
        *self = Self { stream, sent: 0, credit: 0, owed: 0 };
    }

    /// Makes the writer recompute and drop the next `items` items, which the reader has from an earlier run.
    pub fn repeat(&mut self, items: u64) {
        self.owed = items;
    }

    /// Returns the number of items that must still be recomputed.
    #[inline]
    pub fn owed(&self) -> u64 {
        self.owed
    }

    /// Counts a recomputed item.
    pub fn made_again(&mut self) {
        self.owed = self.owed.saturating_sub(1);
    }

    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns whether the last grant that `permit` read allows another item.
    #[inline]
    pub fn has_credit(&self) -> bool {
        self.credit > 0
    }

    /// Returns whether the reader's current grant allows another item, or None if the grant's word is damaged.
    #[inline]
    pub fn permit(&mut self, word: u64) -> Option<Permit> {
        if self.owed > 0 {
            return Some(Permit::Again);
        }
        Some(match Grant::read(word, self.stream)? {
            Reader::Behind => Permit::Wait,
            Reader::Here(wanted) => {
                self.credit = Grant::credit(wanted, self.sent);
                if self.credit > 0 { Permit::Now } else { Permit::Wait }
            }
            Reader::Left | Reader::Ahead | Reader::Done => {
                self.credit = 0;
                Permit::Unwanted
            }
        })
    }

    /// Returns the result of `permit` for a writer that has reached its byte limit (see [`Ahead`]): `Wait` replaces
    /// `Now`.
    pub fn permit_far_ahead(&mut self, word: u64) -> Option<Permit> {
        let permit = self.permit(word)?;
        Some(if permit == Permit::Now { Permit::Wait } else { permit })
    }

    /// Returns the position of the reader's stream, or None if `word` is damaged.
    pub fn reader(&self, word: u64) -> Option<Reader> {
        Grant::read(word, self.stream)
    }

    #[inline]
    pub fn sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.credit = self.credit.saturating_sub(1);
    }
}
