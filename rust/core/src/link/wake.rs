//! When a producer wakes a consumer that sleeps.
//!
//! With small items a consumer that is woken for each one sleeps again at once, and the stream falls
//! to the speed of the scheduler. So a sleeping consumer is woken when a batch waits for it, when the
//! oldest item has waited for some tens of microseconds, or at once if the producer is slow anyway.
//! Items are visible as soon as they are published; only the wake-up is put off, and what is put off
//! for too long (a producer that was fast turns slow) is found by the consumer's own short first sleeps.
//!
//! A consumer that reads many links in turn sleeps for one of them. Items of the others do not wake it.

use std::time::{Duration, Instant};

use crate::process::bell::Wanted;
use crate::process::board::BellRef;

/// Longest that a waiting item is held back, and the gap from which a producer counts as slow.
const PATIENCE: Duration = Duration::from_micros(50);

/// Decides, for one producer, when its consumer is woken.
#[derive(Debug)]
pub struct WakePolicy {
    /// Items published since the consumer was last known to be awake.
    waiting: u32,
    /// Items that are worth a wake-up.
    batch: u32,
    /// When the previous item was published to a sleeping consumer.
    last: Option<Instant>,
    /// When the oldest of the waiting items was published.
    oldest: Option<Instant>,
}

impl WakePolicy {
    /// Wakes after `batch` items at the latest.
    pub fn new(batch: u32) -> Self {
        Self { waiting: 0, batch: batch.max(1), last: None, oldest: None }
    }

    /// To be called after each published item; whether somebody was woken. `wanted` tells whether a sleeper waits for
    /// items of this producer.
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

    /// Wakes the consumer if it sleeps for items of this producer, and tells whether it did: no more come for now.
    pub fn flush(&mut self, bell: &BellRef, wanted: &Wanted) -> bool {
        wanted.is_raised() && self.ring(bell)
    }

    /// Wakes the consumer if it sleeps, and tells whether it did.
    pub fn ring(&mut self, bell: &BellRef) -> bool {
        self.waiting = 0;
        bell.ring()
    }
}
