//! Decides how often a waiting thread yields the processor before it sleeps.
//!
//! If both processes of a link share a core, yielding lets the peer fill or empty the ring, and saves a sleep and a
//! wake-up. With small windows on 2 cores this is 3 to 6 times faster. Yielding is bad in two cases, and each has a
//! rule. First, the peer may be slow. Yielding then does not help, and each yield costs two context switches, so
//! every wait that yielding did not shorten halves the number of yields. Second, an unrelated thread may share the
//! core, and use the core for several milliseconds. Yields to unrelated threads may take one eighth of the time. Beyond
//! that, waits sleep for about fifty times the duration of the last such yield.
//!
//! One `Turns` serves all threads of a process. The fields of `Turns` only collect statistics, so they are accessed
//! without synchronization. Callers pass the time in nanoseconds.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The maximum number of yields in a wait, as long as yields help. If no other thread needs the core, they cost a few
/// system calls.
const MOST: u32 = 10;
/// Every `TRY_AGAIN`th wait without yields tries `TRIED` yields.
const TRIED: u32 = 2;
const TRY_AGAIN: u32 = 16;
/// After a shorter sleep, the next wait yields the full number of times.
const NEAR: u64 = 50_000;

/// If a yield of the processor takes at least this time, in nanoseconds, an unrelated thread is assumed to run. With
/// up to 64 workers on 2 cores, yields to processes of the loader last 0.1 to 0.5 ms, and yields to a busy loop 2 to
/// 8 ms.
const STRANGE: u64 = 1_500_000;
/// With more processes than this, a round of yields among the processes themselves takes as long, and an unrelated
/// thread gets a small share.
const FEW: usize = 32;
/// A yield to an unrelated thread must be compensated by this multiple of its duration.
const PRICE: u64 = 8;
/// The maximum uncompensated time in nanoseconds.
const CREDIT: u64 = 100_000_000;
/// When the maximum is exceeded, waits do not yield for this multiple of the duration of the last such yield.
const REST: u64 = 50;

/// The yield statistics of a process.
#[derive(Debug)]
pub struct Turns {
    /// The number of yields of the next wait.
    turns: AtomicU32,
    /// The number of waits without yields since the last try.
    since_tried: AtomicU32,
    /// The time when all yields to unrelated threads will be compensated.
    paid: AtomicU64,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

impl Turns {
    /// Starts with the full number of yields.
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

    /// Records a yield from `began` to `now`, in a loader with this number of processes. Returns whether the wait may
    /// yield again.
    pub fn given(&self, began: u64, now: u64, processes: usize) -> bool {
        let took = now.saturating_sub(began);
        if took < STRANGE || processes > FEW {
            return true;
        }
        let paid = self.paid.load(Relaxed).max(now) + took * PRICE;
        let goes_on = paid <= now + CREDIT;
        self.paid.store(if goes_on { paid } else { now + CREDIT + took * REST }, Relaxed);
        goes_on
    }

    /// Records that a wait ended after one of its yields.
    pub fn helped(&self) {
        self.turns.store(MOST, Relaxed);
    }

    /// Records that a wait yielded `turns` times and then slept for `took` nanoseconds.
    pub fn slept(&self, turns: u32, took: u64) {
        if took < NEAR {
            self.turns.store(MOST, Relaxed);
        } else if turns > 0 {
            self.turns.store(turns / 2, Relaxed);
        }
    }
}
