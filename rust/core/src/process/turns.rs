//! Determines how often a waiting thread yields the processor (`sched_yield`) before it sleeps.
//!
//! If both processes of a link share a core, a process that yields lets the other process fill or empty the ring, and
//! avoids a sleep and a wake-up. With small windows on 2 cores, yielding makes transfers 3 to 6 times faster. If the
//! other process of the link is slow, yielding does not help, and each yield costs two context switches. A wait that
//! yields and still sleeps halves the number of yields of the next wait. If an unrelated thread shares the core, each
//! yield leaves the core to that thread for several milliseconds. Once yields to unrelated threads have taken more than
//! one eighth of the time, threads wait without yielding for about fifty times the duration of the last yield.
//!
//! All threads of a process share one `Turns`. The fields of `Turns` only contain statistics, so threads access them
//! without synchronization. Callers pass the current time in nanoseconds.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The maximum number of yields in one wait. Unless another thread needs the core, a yield costs one system call.
const MOST: u32 = 10;
/// While waits do not yield, every `TRY_AGAIN`th wait yields up to `TRIED` times, because yielding may help again.
const TRIED: u32 = 2;
const TRY_AGAIN: u32 = 16;
/// If a sleep takes fewer nanoseconds than this, the next wait yields the maximum number of times.
const NEAR: u64 = 50_000;

/// If a yield takes at least this time, in nanoseconds, an unrelated thread is assumed to run. With up to 64 workers on
/// 2 cores, yields to processes of the loader last 0.1 to 0.5 ms, and yields to a busy loop 2 to 8 ms.
const UNRELATED_YIELD: u64 = 1_500_000;
/// The maximum number of processes of a loader for which unrelated threads are detected. With more processes, a yield
/// to processes of the loader takes as long as a yield to an unrelated thread.
const MOST_PROCESSES: usize = 32;
/// A yield to an unrelated thread moves `Turns::paid` forward by this multiple of the yield's duration.
const PRICE: u64 = 8;
/// If `Turns::paid` is more than this many nanoseconds in the future, waits do not yield.
const CREDIT: u64 = 100_000_000;
/// Once `CREDIT` is exceeded, waits do not yield for this multiple of the last yield's duration.
const REST: u64 = 50;

/// The yield statistics of a process.
#[derive(Debug)]
pub struct Turns {
    /// The maximum number of yields in the next wait.
    turns: AtomicU32,
    /// The number of consecutive waits without yields, counted since the last wait with yields.
    since_tried: AtomicU32,
    /// Each yield to an unrelated thread moves `paid` forward. Waits do not yield if this time is more than `CREDIT` in
    /// the future.
    paid: AtomicU64,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

impl Turns {
    /// Creates statistics that allow the maximum number of yields.
    pub const fn new() -> Self {
        Self { turns: AtomicU32::new(MOST), since_tried: AtomicU32::new(0), paid: AtomicU64::new(0) }
    }

    /// Returns the maximum number of yields for a wait that begins now.
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

    /// Records a yield from `began` to `now` in a loader with `processes` processes. Returns whether to yield again.
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

    /// Records that a wait has ended while yielding, without a sleep.
    pub fn helped(&self) {
        self.turns.store(MOST, Relaxed);
    }

    /// Records that a wait has yielded `turns` times and then slept for `took` nanoseconds.
    pub fn slept(&self, turns: u32, took: u64) {
        if took < NEAR {
            self.turns.store(MOST, Relaxed);
        } else if turns > 0 {
            self.turns.store(turns / 2, Relaxed);
        }
    }
}
