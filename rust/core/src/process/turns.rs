//! Determines how often a waiting thread yields the processor (`sched_yield`) before it sleeps.
//!
//! If two processes share a core, calls of `sched_yield` avoid sleeps and make small transfers 3 to 6 times faster. If
//! the awaited process is slow, each call of `sched_yield` wastes two context switches, so later waits yield less
//! often.
//!
//! If yields to threads of other programs take more than one eighth of the time, waiting threads stop yielding for a
//! while.
//!
//! All threads update the statistics of `sched_yield` calls without synchronization, because inexact statistics do no
//! harm.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const MOST: u32 = 10;
/// After yielding has proved useless (`turns` is 0), every `TRY_AGAIN`th wait calls `sched_yield` up to `TRIED` times, to
/// find out whether yielding has become useful.
const TRIED: u32 = 2;
const TRY_AGAIN: u32 = 16;
const NEAR: u64 = 50_000;

/// A call of `sched_yield` that takes at least `UNRELATED_YIELD` nanoseconds is regarded as a yield to another program.
/// In measurements with up to 64 workers on 2 cores, a call of `sched_yield` lasted 0.1 to 0.5 ms if only the loader
/// ran, and 2 to 8 ms if a busy loop shared the cores.
const UNRELATED_YIELD: u64 = 1_500_000;
/// In loaders with more than `MOST_PROCESSES` processes, the duration of `sched_yield` is ignored, because the loader's
/// own processes cause long durations.
const MOST_PROCESSES: usize = 32;
const PRICE: u64 = 8;
const CREDIT: u64 = 100_000_000;
const REST: u64 = 50;

#[derive(Debug)]
pub struct Turns {
    turns: AtomicU32,
    since_tried: AtomicU32,
    /// A time in nanoseconds, which limits how much processor time waiting threads yield to other programs. Each such
    /// yield moves `paid` further into the future. While `paid` is more than `CREDIT` nanoseconds ahead of the clock,
    /// waiting threads do not call `sched_yield`.
    paid: AtomicU64,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

impl Turns {
    pub const fn new() -> Self {
        Self { turns: AtomicU32::new(MOST), since_tried: AtomicU32::new(0), paid: AtomicU64::new(0) }
    }

    /// Returns the number of times that a wait may call `sched_yield` if the wait begins at the time `now`.
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

    /// Records a call of `sched_yield` that lasted from `began` to `now`. Returns whether the waiting thread may yield
    /// again.
    pub fn yielded(&self, began: u64, now: u64, processes: usize) -> bool {
        let took = now.saturating_sub(began);
        if took < UNRELATED_YIELD || processes > MOST_PROCESSES {
            return true;
        }
        let paid = self.paid.load(Relaxed).max(now) + took * PRICE;
        let continues = paid <= now + CREDIT;
        self.paid.store(if continues { paid } else { now + CREDIT + took * REST }, Relaxed);
        continues
    }

    pub fn helped(&self) {
        self.turns.store(MOST, Relaxed);
    }

    pub fn slept(&self, turns: u32, took: u64) {
        if took < NEAR {
            self.turns.store(MOST, Relaxed);
        } else if turns > 0 {
            self.turns.store(turns / 2, Relaxed);
        }
    }
}
