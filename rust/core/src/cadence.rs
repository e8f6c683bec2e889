//! The schedule of the snapshots that a child takes between items.

use std::time::{Duration, Instant};

use crate::sampled_clock::SampledClock;

/// The pause between two snapshots is `factor` times the cost of a snapshot, but at least `most_often`. The schedule
/// uses the shortest of the last three times, because the system may suspend a process during a snapshot. The first two
/// snapshots run code for the first time and take several times as long, so their pauses are shorter.
#[derive(Debug)]
pub struct Cadence {
    most_often: Duration,
    factor: f64,
    /// The seconds that the last three snapshots took, oldest first, with infinity for a missing snapshot.
    took: [f64; 3],
    due: Instant,
    clock: SampledClock,
}

/// The maximum number of items between two readings of the clock. The number grows while readings are closer than
/// `NEAR`.
const LONGEST_STEP: u32 = 64;
const NEAR: Duration = Duration::from_micros(100);

/// The first two snapshots cost this fraction of their time.
const EARLY: f64 = 0.02;

/// Later snapshots cost their time, and `DEAR` times the time beyond the first `CHEAP` seconds, because copying large
/// states also slows down other processes.
const CHEAP: f64 = 0.001;
const DEAR: f64 = 4.0;

impl Cadence {
    /// Creates a schedule whose first snapshot is due after `most_often`, or after each item if this is zero.
    pub fn new(most_often: Duration, factor: f64) -> Self {
        let longest = if most_often.is_zero() { 1 } else { LONGEST_STEP };
        let clock = SampledClock::new(1, longest, NEAR);
        Self { most_often, factor, took: [f64::INFINITY; 3], due: Instant::now() + most_often, clock }
    }

    /// Returns whether a snapshot is due. Must be called once per item.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.clock.sample().is_some_and(|now| now >= self.due)
    }

    /// Records a snapshot, and schedules the next one.
    pub fn made(&mut self, began: Instant, now: Instant) {
        self.took.rotate_left(1);
        self.took[2] = (now - began).as_secs_f64();
        let least = self.took.into_iter().fold(f64::INFINITY, f64::min);
        let is_early = self.took[0].is_infinite();
        let cost = if is_early { EARLY * least } else { least + DEAR * (least - CHEAP).max(0.0) };
        let pause = Duration::try_from_secs_f64(cost * self.factor).unwrap_or(Duration::MAX / 4).max(self.most_often);
        self.due = now.checked_add(pause).unwrap_or(now + Duration::from_secs(1 << 20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(factor: f64, took: &[u64]) -> Vec<u128> {
        let mut cadence = Cadence::new(Duration::from_millis(10), factor);
        let pause = |&micros: &u64| {
            let began = Instant::now();
            let now = began + Duration::from_micros(micros);
            cadence.made(began, now);
            (cadence.due - now).as_micros()
        };
        took.iter().map(pause).collect()
    }

    #[test]
    fn a_pause_is_a_multiple_of_the_shortest_of_the_last_three_snapshots() {
        assert_eq!(pauses(100.0, &[2000, 1000, 200, 900, 800, 700])[2..], [20_000, 20_000, 20_000, 70_000]);
    }

    #[test]
    fn the_first_two_pauses_are_short_and_no_pause_is_shorter_than_the_minimum() {
        assert_eq!(pauses(100.0, &[20_000, 9000, 200, 20]), [40_000, 18_000, 20_000, 10_000]);
    }

    #[test]
    fn time_beyond_the_first_millisecond_counts_five_times() {
        assert_eq!(pauses(100.0, &[20_000; 3])[2], 100 * (1000 + 5 * 19_000));
    }

    #[test]
    fn with_factor_zero_even_a_long_snapshot_is_followed_by_the_minimum() {
        assert_eq!(pauses(0.0, &[1_000_000; 3]), [10_000; 3]);
    }
}
