//! The reader's end of a link: which units are its own, and how much the writer may send.

use super::grant::{Grant, Wish};
use super::stream::Stream;

/// The fate of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Judgement {
    /// It belongs to the stream that is read: take it.
    Take,
    /// Its stream is over: drop it.
    Drop,
    /// Its stream has not begun here: leave it where it is, it will be wanted.
    Leave,
}

/// The widest window: counters that are compared modulo 2^30 must not be further apart.
const WIDEST: u32 = (1 << 29) - 1;

/// The reader's side of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Receiving {
    stream: Stream,
    /// Items taken of this stream, modulo 2^30.
    taken: u32,
    /// Items that the writer may be ahead.
    window: u32,
}

impl Receiving {
    /// Begins to read a stream of which the writer may be `window` items ahead.
    pub fn begin(&mut self, stream: Stream, window: u64) -> Grant {
        self.stream = stream;
        self.taken = 0;
        self.set_window(window)
    }

    /// The stream that is read.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns what to do with a unit of `stream`.
    #[inline]
    pub fn judge(&self, stream: Stream) -> Judgement {
        match stream.cmp(&self.stream) {
            std::cmp::Ordering::Less => Judgement::Drop,
            std::cmp::Ordering::Equal => Judgement::Take,
            std::cmp::Ordering::Greater => Judgement::Leave,
        }
    }

    /// Items that the writer may be ahead.
    pub fn window(&self) -> u64 {
        u64::from(self.window)
    }

    /// Changes how many items the writer may be ahead; 0 halts it.
    pub fn set_window(&mut self, window: u64) -> Grant {
        self.window = window.min(u64::from(WIDEST)) as u32;
        self.grant()
    }

    /// Counts an item as taken: the writer may make another one.
    #[inline]
    pub fn take(&mut self) -> Grant {
        self.taken = self.taken.wrapping_add(1);
        self.grant()
    }

    /// Returns what the writer may send as things are.
    #[inline]
    pub fn grant(&self) -> Grant {
        Grant::new(self.stream, Wish::Items(self.taken.wrapping_add(self.window)))
    }

    /// The grant of a reader that takes in what it has not asked for, so that the writer comes on: at least one more
    /// item.
    pub fn one_more(&self) -> Grant {
        Grant::new(self.stream, Wish::Items(self.taken.wrapping_add(self.window.max(1))))
    }

    /// No more of this pass.
    pub fn leave(&self) -> Grant {
        Grant::new(self.stream, Wish::Left)
    }

    /// No more of the epoch number `epoch`.
    pub fn finish(&mut self, epoch: u32) -> Grant {
        if self.stream.epoch() != epoch {
            self.stream = Stream::new(epoch, 0);
        }
        Grant::new(self.stream, Wish::Done)
    }
}
