//! Decides when a producer wakes up a sleeping consumer.
//!
//! A wake-up per item would limit the throughput of small items, so the producer wakes up the consumer only after
//! several items or a short delay.

use std::time::{Duration, Instant};

use crate::process::board::BellRef;
use crate::sync::bell::Wanted;

/// The maximum delay of a wake-up. If items arrive less often than once in `PATIENCE`, each item causes a wake-up.
const PATIENCE: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub struct WakePolicy {
    waiting: u32,
    batch: u32,
    last: Option<Instant>,
    oldest: Option<Instant>,
}

impl WakePolicy {
    pub fn new(batch: u32) -> Self {
        Self { waiting: 0, batch: batch.max(1), last: None, oldest: None }
    }

    /// The producer must call this method after each published item. The consumer sets the flag `wanted` while it waits
    /// for an item of this producer.
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

    pub fn flush(&mut self, bell: &BellRef, wanted: &Wanted) -> bool {
        wanted.is_raised() && self.ring(bell)
    }

    pub fn ring(&mut self, bell: &BellRef) -> bool {
        self.waiting = 0;
        bell.ring()
    }
}
