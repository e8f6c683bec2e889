//! Defines a clock for loops that run once per item, but must do some work only every few milliseconds.

use std::time::{Duration, Instant};

/// A clock that reads the system clock only in some calls of `sample`, to save time.
#[derive(Debug)]
pub struct SampledClock {
    least: u32,
    most: u32,
    near: Duration,
    looked: Instant,
    step: u32,
    left: u32,
}

impl SampledClock {
    /// # Arguments
    /// * `least`, `most` - the minimum and maximum number of calls of `sample` between two readings of the system
    ///   clock.
    /// * `near` - while successive readings are less than `near` apart, the system clock is read less and less often.
    pub fn new(least: u32, most: u32, near: Duration) -> Self {
        Self { least, most, near, looked: Instant::now(), step: least, left: least }
    }

    /// Returns the current time, or None if this call does not read the system clock.
    #[inline]
    pub fn sample(&mut self) -> Option<Instant> {
        self.left = self.left.wrapping_sub(1);
        (self.left == 0).then(|| self.look(Instant::now()))
    }

    #[cold]
    fn look(&mut self, now: Instant) -> Instant {
        let is_near = now.saturating_duration_since(self.looked) < self.near;
        self.step = if is_near { (self.step * 2).min(self.most) } else { self.least };
        self.left = self.step;
        self.looked = now;
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(clock: &mut SampledClock, now: &mut Instant, call: Duration, looks: usize) -> Vec<u32> {
        let mut found = Vec::new();
        while found.len() < looks {
            found.push(clock.left);
            *now += call * clock.left;
            clock.look(*now);
        }
        found
    }

    #[test]
    fn the_clock_is_read_less_often_while_calls_are_fast_and_more_often_when_they_are_slow() {
        let mut clock = SampledClock::new(8, 256, Duration::from_millis(1));
        let mut now = clock.looked;
        assert_eq!(steps(&mut clock, &mut now, Duration::from_nanos(500), 7), [8, 16, 32, 64, 128, 256, 256]);
        assert_eq!(steps(&mut clock, &mut now, Duration::from_millis(2), 3), [256, 8, 8]);
        assert_eq!(steps(&mut clock, &mut now, Duration::from_micros(20), 4), [8, 16, 32, 64]);
    }
}
