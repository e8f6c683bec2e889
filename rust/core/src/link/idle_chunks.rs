//! The chunks of an arena that were not used for a while: their free pages go back to the system.
//!
//! Runs in the producer, under the arena's lock. The arena is looked at in chunks. A chunk is *touched* by every block
//! that is taken from it or freed in it, and *idle* once a whole period has passed without that. The chunks of a steady
//! state are touched all the time, so that their pages stay; those of one large item go back a few seconds after it.
//! The price of being wrong is bounded: pages that go back and are wanted again were idle for a period at least.

use std::ops::Range;
use std::time::{Duration, Instant};

/// Bytes of a chunk: a huge page if the system has them.
const CHUNK: u64 = 2 << 20;
/// Shortest time for which a chunk is idle before its pages go back; twice that is the longest.
pub const PERIOD: Duration = Duration::from_secs(2);

/// The time of each chunk's last touch, by periods.
#[derive(Debug)]
pub struct IdleChunks {
    /// By chunk: the period of its last touch, or None if it has no free pages that could go back. Chunks behind the
    /// last one have never been touched.
    touched: Vec<Option<u64>>,
    /// Chunks that are Some.
    known: usize,
    period: u64,
    began: Instant,
}

impl IdleChunks {
    /// The chunks of an arena that nobody has used; `now` begins the first period.
    pub fn new(now: Instant) -> Self {
        Self { touched: Vec::new(), known: 0, period: 0, began: now }
    }

    /// Notes that `len` bytes at `offset` were taken or freed.
    pub fn touch(&mut self, offset: u64, len: u64) {
        let chunks = (offset / CHUNK) as usize..(offset + len).div_ceil(CHUNK) as usize;
        if self.touched.len() < chunks.end {
            self.touched.resize(chunks.end, None);
        }
        for chunk in &mut self.touched[chunks] {
            self.known += usize::from(chunk.is_none());
            *chunk = Some(self.period);
        }
    }

    /// Whether there is nothing that could go back, now or later.
    pub fn is_empty(&self) -> bool {
        self.known == 0
    }

    /// Returns the parts that have become idle, in order and merged, once each. The caller gives their free pages back.
    pub fn take_idle(&mut self, now: Instant) -> Vec<Range<u64>> {
        if self.is_empty() || now.saturating_duration_since(self.began) < PERIOD {
            return Vec::new();
        }
        // A producer that did not ask for many periods touched nothing in between.
        self.began = now;
        self.period += 1;
        let mut parts: Vec<Range<u64>> = Vec::new();
        for (index, chunk) in self.touched.iter_mut().enumerate() {
            if chunk.is_none_or(|touched| touched + 1 >= self.period) {
                continue;
            }
            *chunk = None;
            self.known -= 1;
            let start = index as u64 * CHUNK;
            match parts.last_mut() {
                Some(last) if last.end == start => last.end += CHUNK,
                _ => parts.push(start..start + CHUNK),
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_was_idle_for_a_whole_period_is_taken_once() {
        let start = Instant::now();
        let after = |periods: u32| start + periods * PERIOD;
        let mut chunks = IdleChunks::new(start);
        chunks.touch(0, 1);
        chunks.touch(CHUNK - 1, 2 * CHUNK);
        chunks.touch(5 * CHUNK, CHUNK);
        assert!(chunks.take_idle(start).is_empty());
        assert!(chunks.take_idle(after(1)).is_empty(), "touched in the period that has just ended");
        chunks.touch(CHUNK, 1);
        assert_eq!(chunks.take_idle(after(2)), [0..CHUNK, 2 * CHUNK..3 * CHUNK, 5 * CHUNK..6 * CHUNK]);
        assert!(!chunks.is_empty());
        assert_eq!(chunks.take_idle(after(3)).pop(), Some(CHUNK..2 * CHUNK));
        assert!(chunks.is_empty() && chunks.take_idle(after(9)).is_empty());
    }

    #[test]
    fn a_chunk_of_a_steady_state_is_never_taken() {
        let start = Instant::now();
        let mut chunks = IdleChunks::new(start);
        for step in 0..100 {
            chunks.touch(step % 3 * CHUNK, CHUNK);
            assert!(chunks.take_idle(start + step as u32 * PERIOD / 4).is_empty(), "step {step}");
        }
    }
}
