//! Decides when a producer wakes a sleeping consumer.
//!
//! If a consumer is woken for each small item, it goes to sleep again at once, and the throughput drops to the speed of
//! the scheduler. Therefore a sleeping consumer is woken when a batch of items is pending, when the oldest item has
//! been pending for some tens of microseconds, or at once if the producer is slow. Items are visible as soon as they
//! are published; only the wake-up is delayed. The first sleeps of a consumer are short, so it finds items if a fast
//! producer becomes slow and the wake-up is late.
//!
//! A consumer that reads several links in turn sleeps for one of them. Items of further links do not wake it.

use std::time::{Duration, Instant};

use crate::process::bell::Wanted;
use crate::process::board::BellRef;

/// The maximum delay of an item. A producer counts as slow from this interval between items on.
const PATIENCE: Duration = Duration::from_micros(50);

/// The wake-up decisions of one producer.
#[derive(Debug)]
pub struct WakePolicy {
    /// Items published since the consumer was last seen awake.
    waiting: u32,
    /// The consumer is woken after this number of items.
    batch: u32,
    /// When the previous item was published to a sleeping consumer.
    last: Option<Instant>,
    /// When the oldest pending item was published.
    oldest: Option<Instant>,
}

impl WakePolicy {
    /// Wakes the consumer after at most `batch` items.
    pub fn new(batch: u32) -> Self {
        Self { waiting: 0, batch: batch.max(1), last: None, oldest: None }
    }

    /// Call after each published item. Returns whether the consumer was woken. `wanted` is raised if the consumer
    /// sleeps for items of this producer.
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

    /// Wakes the consumer if it sleeps for items of this producer, because no more items follow for now. Returns
    /// whether it was woken.
    pub fn flush(&mut self, bell: &BellRef, wanted: &Wanted) -> bool {
        wanted.is_raised() && self.ring(bell)
    }

    /// Wakes the consumer if it sleeps. Returns whether it was woken.
    pub fn ring(&mut self, bell: &BellRef) -> bool {
        self.waiting = 0;
        bell.ring()
    }
}
