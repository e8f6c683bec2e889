//! Tracks for the writer of a link how many more items the reader wants.

use super::grant::{Grant, Reader};
use super::stream::Stream;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permit {
    Now,
    /// The reader does not accept an item now, because too many items are unread, or because the reader still reads an
    /// earlier stream.
    Wait,
    /// The reader wants no more items of the stream, so the writer drops the item.
    Unwanted,
    /// The reader already has the item, so the writer recomputes the item only to restore its own state.
    Again,
}

/// Limits the number of bytes in large buffers that a writer may have in flight.
///
/// The byte limit is needed because the window only limits the number of items, and large items could need gigabytes.
/// When the reader has to wait, the limit doubles if the writer has reached the limit, and halves otherwise.
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
    pub const LEAST: u64 = 64 << 20;
    const MOST: u64 = 1 << 40;

    pub fn allowed(self) -> u64 {
        self.allowed
    }

    #[inline]
    pub fn take(&mut self, bytes: u64) {
        self.taken = self.taken.saturating_add(bytes);
    }

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
    /// The number of further items that the reader's latest grant allows.
    credit: u32,
    outstanding: u64,
}

impl Sending {
    pub fn begin(&mut self, stream: Stream) {
        *self = Self { stream, sent: 0, credit: 0, outstanding: 0 };
    }

    /// Makes the writer recompute the next `items` items without sending them, because the reader already has them.
    pub fn repeat(&mut self, items: u64) {
        self.outstanding = items;
    }

    /// Returns how many items the writer must still recompute before it sends new items.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    pub fn recomputed(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    pub fn stream(&self) -> Stream {
        self.stream
    }

    #[inline]
    pub fn has_credit(&self) -> bool {
        self.credit > 0
    }

    /// Returns whether the reader accepts another item, or None if the grant word is damaged.
    #[inline]
    pub fn permit(&mut self, word: u64) -> Option<Permit> {
        if self.outstanding > 0 {
            return Some(Permit::Again);
        }
        Some(match Grant::read(word, self.stream)? {
            Reader::Earlier => Permit::Wait,
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

    /// Works like `permit` for a writer that has reached its limit of bytes in flight: returns `Wait` if `permit` would
    /// return `Now`.
    pub fn permit_far_ahead(&mut self, word: u64) -> Option<Permit> {
        let permit = self.permit(word)?;
        Some(if permit == Permit::Now { Permit::Wait } else { permit })
    }

    pub fn reader(&self, word: u64) -> Option<Reader> {
        Grant::read(word, self.stream)
    }

    #[inline]
    pub fn sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.credit = self.credit.saturating_sub(1);
    }
}
