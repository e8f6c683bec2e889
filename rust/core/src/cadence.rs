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
    may_be_early: bool,
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

/// A snapshot may be taken early after this fraction of the pause.
const SHORTEST: f64 = 0.5;

impl Cadence {
    /// If `most_often` is zero, a snapshot is due after each item.
    pub fn new(most_often: Duration, factor: f64) -> Self {
        let longest = if most_often.is_zero() { 1 } else { LONGEST_STEP };
        let clock = SampledClock::new(1, longest, NEAR);
        let last = Instant::now();
        Self { most_often, factor, took: [f64::INFINITY; 3], last, pause: most_often, may_be_early: true, clock }
    }

    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.clock.sample().is_some_and(|now| now - self.last >= self.pause)
    }

    /// Returns whether a process that must sleep until its reader continues may take a snapshot early.
    ///
    /// The reader often waits for another process that is taking a snapshot, so all processes take their snapshots at
    /// the same time, and the reader waits only once.
    pub fn is_due_early(&self) -> bool {
        self.may_be_early && self.last.elapsed() >= self.pause.mul_f64(SHORTEST).max(self.most_often)
    }

    /// Records that a snapshot was taken from `began` to `now`, and returns the pause until the next snapshot. If
    /// `began` is None, no snapshot was taken, and the next snapshot is not early.
    pub fn made(&mut self, began: Option<Instant>, now: Instant) -> Duration {
        self.may_be_early = began.is_some();
        let Some(began) = began else { return self.pause };
        self.took.rotate_left(1);
        self.took[2] = (now - began).as_secs_f64();
        let least = self.took.into_iter().fold(f64::INFINITY, f64::min);
        let is_early = self.took[0].is_infinite();
        let cost = if is_early { EARLY * least } else { least + COSTLY * (least - CHEAP).max(0.0) };
        self.last = now;
        self.pause = Duration::try_from_secs_f64(cost * self.factor).unwrap_or(Duration::MAX).max(self.most_often);
        self.pause
    }
}
