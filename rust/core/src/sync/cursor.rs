//! Implements the two cursors of a ring with one producer and one consumer.
//!
//! A position counts all slots since the creation of the ring. A `u64` does not overflow for centuries. Each side keeps
//! its own cursor in private memory, and publishes a copy of it in shared memory. Each side also caches the cursor of
//! the other side, and reads the shared copy only if the ring seems empty or full. This avoids cache misses.
//!
//! In shared memory, a cursor is sealed (see `seal`), so that a stray write does not look like a valid position.

use crate::error::Corrupted;
use crate::integrity::{open_after, seal};
use crate::sync::primitive::{AtomicU64, Ordering};

/// The initial word of a shared cursor.
pub const BIRTH: u64 = seal(0);

/// The producer's view of a ring.
#[derive(Debug)]
pub struct ProducerCursor {
    /// The next position to write, which may be ahead of the published position.
    tail: u64,
    /// The cached head of the consumer, which may be behind the current head, but is never ahead of it.
    head: u64,
    capacity: u64,
}

impl ProducerCursor {
    pub fn new(capacity: u64) -> Self {
        Self { tail: 0, head: 0, capacity }
    }

    pub fn tail(&self) -> u64 {
        self.tail
    }

    #[inline]
    pub fn has_room(&mut self, shared_head: &AtomicU64, wanted: u64) -> Result<bool, Corrupted> {
        if self.capacity - (self.tail - self.head) >= wanted {
            return Ok(true);
        }
        self.refresh(shared_head)?;
        Ok(self.capacity - (self.tail - self.head) >= wanted)
    }

    /// Reads the consumer's cursor from shared memory, and returns it.
    #[inline]
    pub fn refresh(&mut self, shared_head: &AtomicU64) -> Result<u64, Corrupted> {
        // SYNC(release): pairs with ConsumerCursor::release; all slots before `head` have been read.
        let head = open_after(self.head, shared_head.load(Ordering::Acquire));
        // The word contains only the low bits of the cursor, so a decrease looks like a large increase.
        let head =
            head.filter(|&head| head <= self.tail).ok_or(Corrupted("a consumer's cursor is outside the ring"))?;
        self.head = head;
        Ok(head)
    }

    /// Advances the tail by `by` slots, and publishes these slots to the consumer.
    #[inline]
    pub fn publish(&mut self, shared_tail: &AtomicU64, by: u64) {
        self.tail += by;
        // SYNC(publish): pairs with ConsumerCursor::available; all slots before `tail` are written.
        shared_tail.store(seal(self.tail), Ordering::Release);
    }
}

/// The consumer's view of a ring.
#[derive(Debug)]
pub struct ConsumerCursor {
    head: u64,
    /// The cached tail of the producer, which may be behind the current tail, but is never ahead of it.
    tail: u64,
    capacity: u64,
}

impl ConsumerCursor {
    pub fn new(capacity: u64) -> Self {
        Self { head: 0, tail: 0, capacity }
    }

    pub fn head(&self) -> u64 {
        self.head
    }

    /// Returns the number of slots that can be read.
    #[inline]
    pub fn available(&mut self, shared_tail: &AtomicU64) -> Result<u64, Corrupted> {
        if self.tail == self.head {
            // SYNC(publish): pairs with ProducerCursor::publish.
            let tail = open_after(self.tail, shared_tail.load(Ordering::Acquire));
            let tail = tail.filter(|&tail| tail - self.head <= self.capacity);
            self.tail = tail.ok_or(Corrupted("a producer's cursor is outside the ring"))?;
        }
        Ok(self.tail - self.head)
    }

    /// Advances the head by `by` slots, and frees these slots for the producer.
    #[inline]
    pub fn release(&mut self, shared_head: &AtomicU64, by: u64) {
        self.head += by;
        // SYNC(release): pairs with ProducerCursor::refresh; all slots before `head` have been read.
        shared_head.store(seal(self.head), Ordering::Release);
    }

    /// Checks that this side's cursor in shared memory is intact.
    ///
    /// Must be called before each sleep, because the producer and `Link::pending` do not detect a damaged cursor.
    #[inline]
    pub fn check(&self, shared_head: &AtomicU64) -> Result<(), Corrupted> {
        if shared_head.load(Ordering::Relaxed) == seal(self.head) {
            return Ok(());
        }
        Err(Corrupted("a consumer's cursor was overwritten"))
    }
}
