//! Implements the two cursors of a ring that has one producer and one consumer.
//!
//! The producer and the consumer each keep their own cursor in private memory, and publish a copy in shared memory. To
//! avoid cache misses, each end caches the opposite end's cursor, and reads the shared copy only if the ring seems
//! empty or full.
//!
//! A cursor in shared memory contains check bits, so that a stray write does not look like a valid position.

use crate::error::Corrupted;
use crate::integrity::{open_after, seal};
use crate::sync::primitive::{AtomicU64, Ordering};

pub const BIRTH: u64 = seal(0);

/// The producer's own cursor, and its cached copy of the consumer's cursor.
#[derive(Debug)]
pub struct ProducerCursor {
    /// The position of the producer's next write, which may be ahead of the published position.
    tail: u64,
    /// The cached position of the consumer, which may be older than the real position.
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

    /// Reads the consumer's cursor from shared memory into the cache, and returns this cursor.
    #[inline]
    pub fn refresh(&mut self, shared_head: &AtomicU64) -> Result<u64, Corrupted> {
        // SYNC(release): pairs with ConsumerCursor::release. After this load, the producer may overwrite the slots
        // before `head`, because the consumer has read them.
        let head = open_after(self.head, shared_head.load(Ordering::Acquire));
        // If the consumer's cursor was moved back, `head` exceeds `tail` here, because `open_after` never returns less
        // than the previous value.
        let head =
            head.filter(|&head| head <= self.tail).ok_or(Corrupted("a consumer's cursor is outside the ring"))?;
        self.head = head;
        Ok(head)
    }

    /// Moves the producer's position forward by `by` slots, and publishes these slots to the consumer.
    #[inline]
    pub fn publish(&mut self, shared_tail: &AtomicU64, by: u64) {
        self.tail += by;
        // SYNC(publish): pairs with ConsumerCursor::available. After a load of the new cursor, the consumer may read
        // the slots before `tail`, because the producer has written them.
        shared_tail.store(seal(self.tail), Ordering::Release);
    }
}

/// The consumer's own cursor, and its cached copy of the producer's cursor.
#[derive(Debug)]
pub struct ConsumerCursor {
    head: u64,
    /// The cached position of the producer, which may be older than the real position.
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

    /// Moves the consumer's position forward by `by` slots, and frees these slots for the producer.
    #[inline]
    pub fn release(&mut self, shared_head: &AtomicU64, by: u64) {
        self.head += by;
        // SYNC(release): pairs with ProducerCursor::refresh. After a load of the new cursor, the producer may overwrite
        // the slots before `head`, because the consumer has read them.
        shared_head.store(seal(self.head), Ordering::Release);
    }

    /// Checks that the consumer's own cursor in shared memory is undamaged.
    ///
    /// The consumer must call `check` before each sleep, because the producer reads the cursor only of a full ring.
    #[inline]
    pub fn check(&self, shared_head: &AtomicU64) -> Result<(), Corrupted> {
        if shared_head.load(Ordering::Relaxed) == seal(self.head) {
            return Ok(());
        }
        Err(Corrupted("a consumer's cursor was overwritten"))
    }
}
