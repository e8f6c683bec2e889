//! Decides when a producer wakes up a sleeping consumer.
//!
//! Each wake-up costs scheduler time, so a wake-up per item would limit the throughput of small items. A producer
//! therefore wakes up a sleeping consumer only after a batch of items, or when an item has waited for some tens of
//! microseconds. If items are rare, each item causes a wake-up.
//!
//! A consumer that reads several links in turn is woken up only by items of the link for which it waits.

use std::time::{Duration, Instant};

use crate::process::board::BellRef;
use crate::sync::bell::Wanted;

/// The maximum delay of a wake-up. If the interval between two items is longer, each item causes a wake-up.
const PATIENCE: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub struct WakePolicy {
    waiting: u32,
    batch: u32,
    /// The time at which an item was last published while the consumer slept.
    last: Option<Instant>,
    oldest: Option<Instant>,
}

impl WakePolicy {
    /// Creates a policy that wakes up a sleeping consumer after `batch` pending items.
    pub fn new(batch: u32) -> Self {
        Self { waiting: 0, batch: batch.max(1), last: None, oldest: None }
    }

    /// Must be called after each published item. Returns whether the consumer was woken up. The consumer sets the flag
    /// `wanted` while it waits for an item of this producer.
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

    /// Wakes up the consumer if it waits, because no item follows immediately. Returns whether the consumer slept.
    pub fn flush(&mut self, bell: &BellRef, wanted: &Wanted) -> bool {
        wanted.is_raised() && self.ring(bell)
    }

    pub fn ring(&mut self, bell: &BellRef) -> bool {
        self.waiting = 0;
        bell.ring()
    }
}
