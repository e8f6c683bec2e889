//! Looking at the clock now and then, by a count of calls.
//!
//! Role: for work that is to be done every so many milliseconds by who is called once an item, be that every microsecond or
//! every minute. A look costs some tens of nanoseconds, which is much where items are small.

use std::time::{Duration, Instant};

/// How many calls come between two looks: more and more while looks follow each other fast, and few again after a slow one.
#[derive(Debug)]
pub struct Glances {
    least: u32,
    most: u32,
    near: Duration,
    looked: Instant,
    step: u32,
    left: u32,
}

impl Glances {
    /// # Arguments
    /// * `least`, `most` - calls between two looks.
    /// * `near` - looks that follow each other sooner than that become fewer.
    pub fn new(least: u32, most: u32, near: Duration) -> Self {
        Self { least, most, near, looked: Instant::now(), step: least, left: least }
    }

    /// The time, at those calls at which it is looked at.
    #[inline]
    pub fn glance(&mut self) -> Option<Instant> {
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

    /// After how many calls each time is looked at where a call takes so long.
    fn steps(glances: &mut Glances, now: &mut Instant, call: Duration, looks: usize) -> Vec<u32> {
        let mut found = Vec::new();
        while found.len() < looks {
            found.push(glances.left);
            *now += call * glances.left;
            glances.look(*now);
        }
        found
    }

    #[test]
    fn looks_become_fewer_while_calls_are_fast_and_more_again_once_they_are_slow() {
        let mut glances = Glances::new(8, 256, Duration::from_millis(1));
        let mut now = glances.looked;
        assert_eq!(steps(&mut glances, &mut now, Duration::from_nanos(500), 7), [8, 16, 32, 64, 128, 256, 256]);
        assert_eq!(steps(&mut glances, &mut now, Duration::from_millis(2), 3), [256, 8, 8]);
        assert_eq!(steps(&mut glances, &mut now, Duration::from_micros(20), 4), [8, 16, 32, 64]);
    }

    #[test]
    fn each_call_looks_where_it_is_to() {
        let mut glances = Glances::new(1, 1, Duration::from_millis(1));
        assert!((0..9).all(|_| glances.glance().is_some()));
        let mut glances = Glances::new(3, 3, Duration::from_millis(1));
        assert_eq!((0..9).filter(|_| glances.glance().is_some()).count(), 3);
    }
}
