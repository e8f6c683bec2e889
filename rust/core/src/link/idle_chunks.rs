//! Finds chunks of an arena that were unused for a while, so that their free pages can be returned to the system.
//!
//! A chunk is *idle* if no block in it was allocated or freed for a whole period. Allocating or freeing a block
//! *touches* its chunks. Blocks of similar size use the same chunks repeatedly, so pages in regular use are not
//! returned.

use std::ops::Range;
use std::time::{Duration, Instant};

const CHUNK: u64 = 2 << 20;
/// The time after which a chunk that was not touched is idle.
pub const PERIOD: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct IdleChunks {
    /// For each chunk, the number of the period in which it was last touched, or None if no page of it needs to be
    /// returned.
    touched: Vec<Option<u64>>,
    /// The number of chunks for which `touched` contains a number.
    known: usize,
    period: u64,
    began: Instant,
}

impl IdleChunks {
    pub fn new(now: Instant) -> Self {
        Self { touched: Vec::new(), known: 0, period: 0, began: now }
    }

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

    pub fn is_empty(&self) -> bool {
        self.known == 0
    }

    /// Returns the byte ranges of chunks that have become idle, in ascending order, with adjacent chunks merged.
    pub fn take_idle(&mut self, now: Instant) -> Vec<Range<u64>> {
        if self.is_empty() || now.saturating_duration_since(self.began) < PERIOD {
            return Vec::new();
        }
        // If several periods have passed since the last call, they count as one period.
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
