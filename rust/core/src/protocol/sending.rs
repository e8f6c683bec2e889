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
