//! The two cursors of a single-producer single-consumer ring.
//!
//! Positions count from the ring's birth and never wrap (a `u64` lasts for centuries); a position
//! modulo the capacity is a place in the ring. Each side keeps its own cursor privately, writes it to
//! shared memory for the other, and reads the other's only when what it remembers of it does not
//! suffice: so an empty or a full ring costs a cache miss, and a flowing one does not.
//!
//! In shared memory a cursor is a sealed word (see `check`): one that something else wrote over is noticed by whoever
//! reads it, rather than taken for a ring that is shorter or emptier than it is.

use crate::error::Corrupted;
use crate::integrity::{open_after, seal};
use crate::sync::primitive::{AtomicU64, Ordering};

/// The shared word of a cursor at its ring's birth.
pub const BIRTH: u64 = seal(0);

/// The producer's view of a ring.
#[derive(Debug)]
pub struct ProducerCursor {
    /// Next position to write. This side is its only writer; the shared copy is never ahead of it.
    tail: u64,
    /// The consumer's head as last seen; stale copies are too small, hence safe.
    head: u64,
    capacity: u64,
}

impl ProducerCursor {
    /// A cursor at the birth of a ring of `capacity` slots.
    pub fn new(capacity: u64) -> Self {
        Self { tail: 0, head: 0, capacity }
    }

    /// Next position to write.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Whether `wanted` slots are free.
    #[inline]
    pub fn has_room(&mut self, shared_head: &AtomicU64, wanted: u64) -> Result<bool, Corrupted> {
        if self.capacity - (self.tail - self.head) >= wanted {
            return Ok(true);
        }
        self.refresh(shared_head)?;
        Ok(self.capacity - (self.tail - self.head) >= wanted)
    }

    /// Reads the consumer's cursor anew and returns it.
    #[inline]
    pub fn refresh(&mut self, shared_head: &AtomicU64) -> Result<u64, Corrupted> {
        // SYNC(release): pairs with ConsumerCursor::release; what lies before `head` was read to the end.
        let head = open_after(self.head, shared_head.load(Ordering::Acquire));
        // One that went back is taken for one far ahead.
        let head = head.filter(|&head| head <= self.tail).ok_or(Corrupted("a consumer's cursor left the ring"))?;
        self.head = head;
        Ok(head)
    }

    /// Moves `by` slots on and shows them to the consumer.
    #[inline]
    pub fn publish(&mut self, shared_tail: &AtomicU64, by: u64) {
        self.tail += by;
        // SYNC(publish): pairs with ConsumerCursor::available; what lies before `tail` is written.
        shared_tail.store(seal(self.tail), Ordering::Release);
    }
}

/// The consumer's view of a ring.
#[derive(Debug)]
pub struct ConsumerCursor {
    /// Next position to read. This side is its only writer.
    head: u64,
    /// The producer's tail as last seen; stale copies are too small, hence safe.
    tail: u64,
    capacity: u64,
}

impl ConsumerCursor {
    /// A cursor at the birth of a ring of `capacity` slots.
    pub fn new(capacity: u64) -> Self {
        Self { head: 0, tail: 0, capacity }
    }

    /// Next position to read.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Slots that can be read.
    #[inline]
    pub fn available(&mut self, shared_tail: &AtomicU64) -> Result<u64, Corrupted> {
        if self.tail == self.head {
            // SYNC(publish): pairs with ProducerCursor::publish.
            let tail = open_after(self.tail, shared_tail.load(Ordering::Acquire));
            let tail = tail.filter(|&tail| tail - self.head <= self.capacity);
            self.tail = tail.ok_or(Corrupted("a producer's cursor left the ring"))?;
        }
        Ok(self.tail - self.head)
    }

    /// Moves `by` slots on and gives them back to the producer.
    #[inline]
    pub fn release(&mut self, shared_head: &AtomicU64, by: u64) {
        self.head += by;
        // SYNC(release): pairs with ProducerCursor::refresh; reads of the slots happened before.
        shared_head.store(seal(self.head), Ordering::Release);
    }

    /// Whether this side's own cursor still stands in shared memory as it was written.
    ///
    /// To be asked before sleeping: the producer looks at it only when its room runs out, and a look at whether
    /// anything is pending, which compares the two cursors, would be wrong for ever.
    #[inline]
    pub fn check(&self, shared_head: &AtomicU64) -> Result<(), Corrupted> {
        if shared_head.load(Ordering::Relaxed) == seal(self.head) {
            return Ok(());
        }
        Err(Corrupted("a consumer's cursor was overwritten"))
    }
}
