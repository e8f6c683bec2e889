//! Schedules the snapshots that a worker process takes of its state.

use std::time::{Duration, Instant};

use crate::sampled_clock::SampledClock;

/// Schedules snapshots. The pause after a snapshot is `factor` times the cost of the snapshot, but at least the
/// duration `most_often`.
///
/// The cost is the shortest duration of the last three snapshots, because longer durations may include the run time of
/// other processes.
#[derive(Debug)]
pub struct Cadence {
    most_often: Duration,
    factor: f64,
    took: [f64; 3],
    last: Instant,
    pause: Duration,
    waited: Duration,
    clock: SampledClock,
}

const LONGEST_STEP: u32 = 64;
const NEAR: Duration = Duration::from_micros(100);

/// For the first two snapshots, the cost is only this fraction of the duration, because code that runs for the first
/// time is slow.
const EARLY: f64 = 0.02;

/// If a snapshot takes longer than `CHEAP` seconds, its cost exceeds its duration, because copying a large state slows
/// down other processes.
const CHEAP: f64 = 0.001;
const COSTLY: f64 = 4.0;

/// Each second that the process waits for its reader shortens the pause between two snapshots by `IDLE` seconds.
const IDLE: u32 = 1;

impl Cadence {
    /// If `most_often` is zero, a snapshot is due after each item.
    pub fn new(most_often: Duration, factor: f64) -> Self {
        let longest = if most_often.is_zero() { 1 } else { LONGEST_STEP };
        let clock = SampledClock::new(1, longest, NEAR);
        let (last, waited) = (Instant::now(), Duration::ZERO);
        Self { most_often, factor, took: [f64::INFINITY; 3], last, pause: most_often, waited, clock }
    }

    /// # Arguments
    /// * `waited` - the total time that the process has waited for its reader, or None if the process will not wait
    ///   now.
    #[inline]
    pub fn is_due(&mut self, waited: Option<Duration>) -> bool {
        let Some(waited) = waited else { return self.clock.sample().is_some_and(|now| now - self.last >= self.pause) };
        let passed = self.last.elapsed();
        let is_early = self.waited != Duration::MAX && passed >= self.most_often;
        is_early && passed + waited.saturating_sub(self.waited) * IDLE >= self.pause
    }

    /// Records that a snapshot was taken from `began` to `now`, and returns the pause until the next snapshot. If
    /// `began` is None, no snapshot was taken, and waiting for the reader does not shorten this pause.
    pub fn made(&mut self, began: Option<Instant>, now: Instant, waited: Duration) -> Duration {
        let Some(began) = began else {
            self.waited = Duration::MAX;
            return self.pause;
        };
        self.took.rotate_left(1);
        self.took[2] = (now - began).as_secs_f64();
        let least = self.took.into_iter().fold(f64::INFINITY, f64::min);
        let is_early = self.took[0].is_infinite();
        let cost = if is_early { EARLY * least } else { least + COSTLY * (least - CHEAP).max(0.0) };
        (self.last, self.waited) = (now, waited);
        self.pause = Duration::try_from_secs_f64(cost * self.factor).unwrap_or(Duration::MAX).max(self.most_often);
        self.pause
    }
}
