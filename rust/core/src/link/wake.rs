//! Decides when a producer wakes up a sleeping consumer.
//!
//! Each wake-up costs scheduler time, which would limit the throughput of small items. For a sleeping consumer, a
//! producer therefore rings the bell for a batch of items, for an item that has waited for some tens of microseconds,
//! or for each item if items are rare.
//!
//! If a consumer reads several links in turn, only items of the link for which it waits wake up the consumer.

use std::time::{Duration, Instant};

use crate::process::board::BellRef;
use crate::sync::bell::Wanted;

/// The maximum time that a sleeping consumer is woken up late. If the interval between items is longer, the producer
/// rings the bell for each item.
const PATIENCE: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub struct WakePolicy {
    waiting: u32,
    batch: u32,
    /// The last time at which an item was published while the consumer slept.
    last: Option<Instant>,
    oldest: Option<Instant>,
}

impl WakePolicy {
    /// Creates a policy. `batch` is the number of pending items after which a sleeping consumer is woken up.
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

    /// Wakes up the consumer if it waits, because the next item does not follow immediately. Returns whether the
    /// consumer slept.
    pub fn flush(&mut self, bell: &BellRef, wanted: &Wanted) -> bool {
        wanted.is_raised() && self.ring(bell)
    }

    pub fn ring(&mut self, bell: &BellRef) -> bool {
        self.waiting = 0;
        bell.ring()
    }
}
