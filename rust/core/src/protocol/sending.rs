//! The writer's end of a link: how much the reader wants.

use super::grant::{Grant, Reader};
use super::stream::Stream;

/// Whether an item may go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permit {
    /// The reader wants it.
    Now,
    /// The reader wants none yet: it has enough, or has not come to this stream.
    Wait,
    /// The reader wants no more of this stream: what is due to it is dropped.
    Unwanted,
    /// The reader got it from an earlier run of this stream: it is made again, compared and dropped.
    Again,
}

/// The read-ahead in bytes: what a writer may have sent of large buffers that its reader has not taken, at first.
///
/// A window is a number of items, and of large ones it may be gigabytes that nobody is to use soon. An item of any size
/// goes out while nothing is on its way. A reader that has taken as much as it allowed, and then had to wait, allows
/// twice as much; one that waits although less was on its way has no use for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ahead {
    allowed: u64,
    /// Bytes that were taken since the reader last waited.
    taken: u64,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { allowed: Self::LEAST, taken: 0 }
    }
}

impl Ahead {
    /// The least that a reader allows.
    pub const LEAST: u64 = 64 << 20;
    const MOST: u64 = 1 << 40;

    /// The bytes that the reader allows.
    pub fn allowed(self) -> u64 {
        self.allowed
    }

    /// Counts bytes that were taken.
    #[inline]
    pub fn take(&mut self, bytes: u64) {
        self.taken = self.taken.saturating_add(bytes);
    }

    /// Notes that the reader waits for the writer; returns whether other bytes are allowed from now on.
    pub fn wait(&mut self) -> bool {
        let before = self.allowed;
        let taken = std::mem::take(&mut self.taken);
        self.allowed = if taken >= self.allowed { 2 * self.allowed } else { self.allowed / 2 };
        self.allowed = self.allowed.clamp(Self::LEAST, Self::MOST);
        self.allowed != before
    }
}

/// The writer's side of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Sending {
    stream: Stream,
    /// Items sent in this stream, modulo 2^30.
    sent: u32,
    /// Items that the reader wants beyond them, as last read. It may want more by now, and fewer if it has paused.
    credit: u32,
    /// Items to make again before the first that goes out.
    owed: u64,
}

impl Sending {
    /// Begins a stream.
    pub fn begin(&mut self, stream: Stream) {
        *self = Self { stream, sent: 0, credit: 0, owed: 0 };
    }

    /// Makes the first `items` of the stream come again: the reader has them from an earlier run.
    pub fn repeat(&mut self, items: u64) {
        self.owed = items;
    }

    /// Items that are still to be made again.
    #[inline]
    pub fn owed(&self) -> u64 {
        self.owed
    }

    /// Counts an item that was made again.
    pub fn made_again(&mut self) {
        self.owed = self.owed.saturating_sub(1);
    }

    /// The stream that units belong to.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Whether an item may go out, by what was last read.
    #[inline]
    pub fn has_credit(&self) -> bool {
        self.credit > 0
    }

    /// Whether an item may go out, by the reader's word; None if that is damaged.
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

    /// The same for a writer that is as many bytes ahead as the reader allows (see [`Ahead`]): the next item waits until
    /// something was taken.
    pub fn permit_far_ahead(&mut self, word: u64) -> Option<Permit> {
        let permit = self.permit(word)?;
        Some(if permit == Permit::Now { Permit::Wait } else { permit })
    }

    /// Where the reader is; None if its word is damaged.
    pub fn reader(&self, word: u64) -> Option<Reader> {
        Grant::read(word, self.stream)
    }

    /// Counts an item that went out.
    #[inline]
    pub fn sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.credit = self.credit.saturating_sub(1);
    }
}
