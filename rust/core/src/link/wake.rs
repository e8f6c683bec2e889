//! Decides when a producer wakes up a sleeping consumer.
//!
//! A consumer that is woken up for each small item would soon sleep again, so the scheduler would limit the throughput.
//! Therefore a producer wakes up the consumer when a batch of items is pending, when the oldest item was pending for
//! some tens of microseconds, or immediately if the producer is slow. Only the wake-up is delayed, so a running
//! consumer can take items immediately. The first sleeps of a consumer are short, because a producer that has just
//! become slow may wake up the consumer late.
//!
//! If a consumer reads several links in turn, only items of the awaited link wake up the sleeping consumer.

use std::time::{Duration, Instant};

use crate::process::bell::Wanted;
use crate::process::board::BellRef;

/// The maximum delay of the consumer's wake-up. A producer with a longer interval between items counts as slow.
const PATIENCE: Duration = Duration::from_micros(50);

/// Decides when one producer wakes up its consumer.
#[derive(Debug)]
pub struct WakePolicy {
    /// How many items were published since the consumer was last awake.
    waiting: u32,
    /// The number of items after which the consumer is woken up.
    batch: u32,
    /// The time at which an item was last published while the consumer slept.
    last: Option<Instant>,
    /// The time at which the oldest item counted in `waiting` was published.
    oldest: Option<Instant>,
}

impl WakePolicy {
    /// `batch` is the number of pending items after which a sleeping consumer is woken up.
    pub fn new(batch: u32) -> Self {
        Self { waiting: 0, batch: batch.max(1), last: None, oldest: None }
    }

    /// Must be called after each published item. Returns whether the consumer was woken up. The consumer raises
    /// `wanted` while it sleeps and waits for an item of this producer.
    #[inline]
    pub fn published(&mut self, bell: &BellRef, wanted: &Wanted) -> bool {
        if bell.has_sleeper() && wanted.is_raised() {
            return self.published_to_sleeper(bell);
        }
        self.waiting = 0;
        false
    }

    fn published_to_sleeper(&mut self, bell: &BellRef) -> bool {
        let now = Instant::now();
        self.waiting += 1;
        if self.waiting == 1 {
            self.oldest = Some(now);
        }
        let late = |since: Option<Instant>| since.is_none_or(|then| now - then >= PATIENCE);
        let slow = late(self.last);
        self.last = Some(now);
        (slow || self.waiting >= self.batch || late(self.oldest)) && self.ring(bell)
    }

    /// Wakes up the waiting consumer, because no item follows immediately. Returns whether the consumer was woken up.
    pub fn flush(&mut self, bell: &BellRef, wanted: &Wanted) -> bool {
        wanted.is_raised() && self.ring(bell)
    }

    /// Wakes up the consumer if it sleeps. Returns whether the consumer was woken up.
    pub fn ring(&mut self, bell: &BellRef) -> bool {
        self.waiting = 0;
        bell.ring()
    }
}
