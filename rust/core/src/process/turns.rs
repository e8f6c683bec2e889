//! Determines how often a waiting thread yields the processor (`sched_yield`) before it sleeps.
//!
//! If both processes of a link share a core, yielding avoids sleeps. With small windows on 2 cores, transfers become 3
//! to 6 times faster. If the other process is slow, each yield wastes two context switches. After a wait that ended in
//! a sleep despite its yields, the next wait therefore yields half as often.
//!
//! A yield to an unrelated thread takes milliseconds. When such yields have taken more than one eighth of the time,
//! yielding stops for about 50 times the duration of the last yield.
//!
//! All threads of a process share one `Turns` without synchronization, because the values are only statistics.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const MOST: u32 = 10;
/// When waits no longer yield, every `TRY_AGAIN`th wait still yields up to `TRIED` times, as a test.
const TRIED: u32 = 2;
const TRY_AGAIN: u32 = 16;
/// If a wait sleeps for less than this number of nanoseconds, the next wait yields up to `MOST` times.
const NEAR: u64 = 50_000;

/// A yield of at least this number of nanoseconds counts as a yield to an unrelated thread. With up to 64 workers on 2
/// cores, a yield to a process of the loader lasts 0.1 to 0.5 ms, and a yield to a busy loop lasts 2 to 8 ms.
const UNRELATED_YIELD: u64 = 1_500_000;
/// With more processes than this, all yields are long, so long yields do not count as yields to unrelated threads.
const MOST_PROCESSES: usize = 32;
const PRICE: u64 = 8;
const CREDIT: u64 = 100_000_000;
const REST: u64 = 50;

/// Statistics about the yields of all threads of a process.
#[derive(Debug)]
pub struct Turns {
    turns: AtomicU32,
    /// The number of waits without yields since a wait last tested yielding.
    since_tried: AtomicU32,
    /// The account of yields to unrelated threads, as a time in nanoseconds. Each such yield moves the time forward by
    /// `PRICE` times its duration. Waits do not yield while the time is more than `CREDIT` nanoseconds in the future.
    paid: AtomicU64,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

impl Turns {
    /// Creates empty statistics, with which the next wait yields up to `MOST` times.
    pub const fn new() -> Self {
        Self { turns: AtomicU32::new(MOST), since_tried: AtomicU32::new(0), paid: AtomicU64::new(0) }
    }

    /// Returns how often a wait that begins at the time `now` may yield.
    pub fn begin(&self, now: u64) -> u32 {
        if self.paid.load(Relaxed) > now + CREDIT {
            return 0;
        }
        let turns = self.turns.load(Relaxed);
        if turns > 0 {
            return turns;
        }
        let since = self.since_tried.load(Relaxed) + 1;
        self.since_tried.store(since % TRY_AGAIN, Relaxed);
        if since == TRY_AGAIN { TRIED } else { 0 }
    }

    /// Records a yield that lasted from `began` to `now`, in a loader with `processes` processes. Returns whether the
    /// waiting thread may yield again.
    pub fn given(&self, began: u64, now: u64, processes: usize) -> bool {
        let took = now.saturating_sub(began);
        if took < UNRELATED_YIELD || processes > MOST_PROCESSES {
            return true;
        }
        let paid = self.paid.load(Relaxed).max(now) + took * PRICE;
        let goes_on = paid <= now + CREDIT;
        self.paid.store(if goes_on { paid } else { now + CREDIT + took * REST }, Relaxed);
        goes_on
    }

    /// Records that a wait has ended during its yields, without a sleep.
    pub fn helped(&self) {
        self.turns.store(MOST, Relaxed);
    }

    /// Records that a wait has yielded up to `turns` times and has then slept for `took` nanoseconds.
    pub fn slept(&self, turns: u32, took: u64) {
        if took < NEAR {
            self.turns.store(MOST, Relaxed);
        } else if turns > 0 {
            self.turns.store(turns / 2, Relaxed);
        }
    }
}
