//! Determines which messages belong to the reader's current stream, and how many items the writer may send.

use super::grant::{Grant, Wish};
use super::stream::Stream;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Judgement {
    /// The message belongs to the reader's current stream, so the reader takes the message.
    Take,
    /// The message belongs to an earlier stream, so the reader drops the message.
    Drop,
    /// The message belongs to a later stream, so the reader leaves the message in the ring.
    Leave,
}

/// The maximum number of unread items, which is small enough to compare item counts modulo 2^30.
const WIDEST: u32 = (1 << 29) - 1;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Receiving {
    stream: Stream,
    taken: u32,
    window: u32,
}

impl Receiving {
    /// Begins a stream, permits the writer to be `window` items ahead of the reader, and returns the first grant.
    pub fn begin(&mut self, stream: Stream, window: u64) -> Grant {
        self.stream = stream;
        self.taken = 0;
        self.set_window(window)
    }

    pub fn stream(&self) -> Stream {
        self.stream
    }

    #[inline]
    pub fn judge(&self, stream: Stream) -> Judgement {
        match stream.cmp(&self.stream) {
            std::cmp::Ordering::Less => Judgement::Drop,
            std::cmp::Ordering::Equal => Judgement::Take,
            std::cmp::Ordering::Greater => Judgement::Leave,
        }
    }

    pub fn window(&self) -> u64 {
        u64::from(self.window)
    }

    /// Sets how many items the writer may be ahead of the reader, and returns the new grant.
    pub fn set_window(&mut self, window: u64) -> Grant {
        self.window = window.min(u64::from(WIDEST)) as u32;
        self.grant()
    }

    /// Counts a received item, and returns the grant that allows the writer to send one more item.
    #[inline]
    pub fn take(&mut self) -> Grant {
        self.taken = self.taken.wrapping_add(1);
        self.grant()
    }

    #[inline]
    pub fn grant(&self) -> Grant {
        Grant::new(self.stream, Wish::Items(self.taken.wrapping_add(self.window)))
    }

    /// Returns a grant that allows the writer to send at least one more item, even if the writer must not send items
    /// ahead (`window` is 0).
    pub fn one_more(&self) -> Grant {
        Grant::new(self.stream, Wish::Items(self.taken.wrapping_add(self.window.max(1))))
    }

    pub fn leave(&self) -> Grant {
        Grant::new(self.stream, Wish::Left)
    }

    pub fn finish(&mut self, epoch: u32) -> Grant {
        if self.stream.epoch() != epoch {
            self.stream = Stream::new(epoch, 0);
        }
        Grant::new(self.stream, Wish::Done)
    }
}
