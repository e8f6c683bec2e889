//! Decides when a child process (a worker or the dispatching process) takes its next snapshot between two items.

use std::time::{Duration, Instant};

use crate::sampled_clock::SampledClock;

/// The pause between two snapshots is `factor` times the cost of a snapshot, but at least `most_often`.
///
/// The cost is derived from the shortest of the last three snapshots, because the operating system may suspend a
/// process during a snapshot. The first two snapshots take several times as long as later snapshots, because their code
/// runs for the first time. Only a fraction of their duration therefore counts as cost.
#[derive(Debug)]
pub struct Cadence {
    most_often: Duration,
    factor: f64,
    /// The durations of the last three snapshots in seconds, oldest first. A missing snapshot has an infinite duration.
    took: [f64; 3],
    due: Instant,
    clock: SampledClock,
}

/// The maximum number of items between two readings of the clock. The number grows while readings are less than `NEAR`
/// apart.
const LONGEST_STEP: u32 = 64;
const NEAR: Duration = Duration::from_micros(100);

/// The fraction of the duration of each of the first two snapshots that counts as their cost.
const EARLY: f64 = 0.02;

/// The cost of a later snapshot is its duration, plus `DEAR` times the part of the duration beyond `CHEAP` seconds.
/// Long snapshots cost extra, because copying a large state also slows down other processes.
const CHEAP: f64 = 0.001;
const DEAR: f64 = 4.0;

impl Cadence {
    /// Creates a schedule whose first snapshot is due after `most_often`. If `most_often` is zero, a snapshot is due
    /// after each item.
    pub fn new(most_often: Duration, factor: f64) -> Self {
        let longest = if most_often.is_zero() { 1 } else { LONGEST_STEP };
        let clock = SampledClock::new(1, longest, NEAR);
        Self { most_often, factor, took: [f64::INFINITY; 3], due: Instant::now() + most_often, clock }
    }

    /// Returns whether a snapshot is due now. The child process must call this method once per item.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.clock.sample().is_some_and(|now| now >= self.due)
    }

    /// Records a completed snapshot, schedules the next snapshot, and returns the pause between the two snapshots.
    pub fn made(&mut self, began: Instant, now: Instant) -> Duration {
        self.took.rotate_left(1);
        self.took[2] = (now - began).as_secs_f64();
        let least = self.took.into_iter().fold(f64::INFINITY, f64::min);
        let is_early = self.took[0].is_infinite();
        let cost = if is_early { EARLY * least } else { least + DEAR * (least - CHEAP).max(0.0) };
        let pause = Duration::try_from_secs_f64(cost * self.factor).unwrap_or(Duration::MAX / 4).max(self.most_often);
        self.due = now.checked_add(pause).unwrap_or(now + Duration::from_secs(1 << 20));
        pause
    }
}
