//! Determines how often a waiting thread yields the processor (`sched_yield`) before it sleeps.
//!
//! If both processes of a link share a core, yielding avoids sleeps, and makes transfers with small windows on 2 cores
//! 3 to 6 times faster. If the other process is slow, each yield wastes two context switches, so after a wait that
//! still slept, the next wait yields half as often. Yields to unrelated threads take milliseconds. Once these yields
//! have taken over one eighth of the time, yielding stops for about 50 times the last yield's duration.
//!
//! All threads of a process share one `Turns` without synchronization, because it only contains statistics.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const MOST: u32 = 10;
/// While yielding is switched off, every `TRY_AGAIN`th wait still yields up to `TRIED` times, to test whether yielding
/// helps again.
const TRIED: u32 = 2;
const TRY_AGAIN: u32 = 16;
/// If a sleep takes fewer nanoseconds than this, the next wait yields `MOST` times.
const NEAR: u64 = 50_000;

/// A yield of at least this many nanoseconds is attributed to an unrelated thread. With up to 64 workers on 2 cores, a
/// yield to a process of the loader lasts 0.1 to 0.5 ms, and a yield to a busy loop 2 to 8 ms.
const UNRELATED_YIELD: u64 = 1_500_000;
/// With more processes than this, long yields are not attributed to unrelated threads, because all yields are long.
const MOST_PROCESSES: usize = 32;
const PRICE: u64 = 8;
const CREDIT: u64 = 100_000_000;
const REST: u64 = 50;

/// The yield statistics of a process.
#[derive(Debug)]
pub struct Turns {
    turns: AtomicU32,
    /// The number of waits since yielding was last tested.
    since_tried: AtomicU32,
    /// A time in nanoseconds that each yield to an unrelated thread postpones by `PRICE` times the yield's duration.
    /// Waits do not yield while this time is more than `CREDIT` nanoseconds in the future.
    paid: AtomicU64,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

impl Turns {
    /// Creates empty statistics, with which waits yield as often as possible.
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

    /// Records a yield from `began` to `now` in a loader with `processes` processes, and returns whether to yield
    /// again.
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
