//! Measures the time of pipes in a sample of their calls, so that measuring is cheap even for small items.
//!
//! An outermost call of a pipe is a call that no other pipe has made. About one of `interval` outermost calls is
//! measured, together with its nested calls. The own time of a pipe excludes the time of its nested calls.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use torchdata_core::stats::{coarse_nanoseconds, nanoseconds};

const COST: u64 = 60;
/// Measuring the calls of all pipes takes at most 1/`PRICE` of the run time. Measuring only the calls of the loader
/// takes at most 1/`PRICE_METERED` of the run time.
pub const PRICE: u64 = 200;
pub const PRICE_METERED: u64 = 1000;
pub const LONGEST: u64 = 128;
pub const LONGEST_METERED: u64 = 1024;
/// The minimum duration of a slow call in nanoseconds. A slow call is recorded even if it is not in the sample of
/// measured calls.
pub const NOTICED: u64 = 12_000_000;

pub const LOOK_AGAIN: u32 = 128;

/// The number of measured outermost calls in progress in all threads.
static MEASURING: AtomicU32 = AtomicU32::new(0);

pub fn is_measuring() -> bool {
    MEASURING.load(Relaxed) != 0
}

struct Clocking {
    /// The number of calls of pipes in progress in this thread, which are the outermost call and its nested calls.
    depth: Cell<u32>,
    /// How many calls the current outermost call represents in the statistics, or 0 if this call is not measured.
    weight: Cell<u64>,
    /// The nanoseconds that the innermost measured call has spent in its nested calls.
    children: Cell<u64>,
    calls: Cell<u64>,
    countdown: Cell<u64>,
    gap: Cell<u64>,
    most: Cell<u64>,
    last: Cell<u64>,
    /// The moving average of the durations of this thread's outermost calls, in nanoseconds.
    usual: Cell<u64>,
    random: Cell<u64>,
}

thread_local! {
    static CLOCKING: Clocking = const { Clocking {
        depth: Cell::new(0),
        weight: Cell::new(0),
        children: Cell::new(0),
        calls: Cell::new(0),
        countdown: Cell::new(1),
        gap: Cell::new(1),
        most: Cell::new(1),
        last: Cell::new(0),
        usual: Cell::new(0),
        random: Cell::new(0x9E37_79B9_7F4A_7C15),
    } };
}

pub fn around(random: &Cell<u64>, mean: u64) -> u64 {
    let mut bits = random.get();
    bits ^= bits << 13;
    bits ^= bits >> 7;
    bits ^= bits << 17;
    random.set(bits);
    if mean <= 1 { 1 } else { 1 + (bits >> 33) % (2 * mean - 1) }
}

/// Returns how many calls one measured call must represent on average, so that measuring takes at most 1/`price` of the
/// run time.
pub fn interval(usual: u64, calls: u64, price: u64, longest: u64) -> u64 {
    (calls * COST * price / usual.max(1)).clamp(1, longest)
}

/// Returns a random number of calls until the next measured call, on average `mean`. The first results are smaller than
/// `mean`, so that short runs also contain measured calls.
pub fn next_gap(random: &Cell<u64>, most: &Cell<u64>, mean: u64) -> u64 {
    let least = mean.min(most.get());
    most.set((2 * most.get()).min(LONGEST_METERED));
    around(random, least)
}

/// Resets this thread's measurement of pipe calls, which is unfinished after a fork during such a call.
pub fn begin() {
    MEASURING.store(0, Relaxed);
    CLOCKING.with(|thread| {
        thread.depth.set(0);
        thread.weight.set(0);
        thread.countdown.set(1);
        thread.gap.set(1);
        thread.most.set(1);
        thread.last.set(0);
        thread.usual.set(0);
    });
}

pub struct Timed {
    /// The nanoseconds of a sampled call without its nested calls, and how many calls this call represents.
    pub own: Option<(u64, u64)>,
    /// The nanoseconds of a sampled or slow outermost call, and how many calls this call represents.
    pub whole: Option<(u64, u64)>,
    pub passed: u64,
}

/// Runs a call of a pipe, and measures some calls. Returns the result, whether the call was nested, and the
/// measurement.
pub fn timed<T>(call: impl FnOnce() -> T) -> (T, bool, Option<Timed>) {
    CLOCKING.with(|thread| {
        let depth = thread.depth.get();
        let nested = depth > 0;
        if !nested {
            thread.countdown.set(thread.countdown.get() - 1);
            if thread.countdown.get() == 0 {
                thread.weight.set(thread.gap.get());
                thread.calls.set(0);
                MEASURING.store(MEASURING.load(Relaxed) + 1, Relaxed);
            }
        }
        thread.depth.set(depth + 1);
        let (result, found) = match thread.weight.get() {
            0 if nested => (call(), None),
            0 => unmeasured_root(thread, call),
            weight => measured(thread, !nested, weight, call),
        };
        thread.depth.set(thread.depth.get().saturating_sub(1));
        (result, nested, found)
    })
}

fn unmeasured_root<T>(thread: &Clocking, call: impl FnOnce() -> T) -> (T, Option<Timed>) {
    let began = coarse_nanoseconds();
    let result = call();
    let took = coarse_nanoseconds().saturating_sub(began);
    (result, (took >= NOTICED).then(|| notice(thread, took)))
}

/// Records a slow call. After a slow call, the following call is measured as well, because it may also be slow.
#[cold]
fn notice(thread: &Clocking, took: u64) -> Timed {
    thread.usual.set((7 * thread.usual.get() + took) / 8);
    thread.countdown.set(1);
    thread.gap.set(1);
    Timed { own: None, whole: Some((took, 1)), passed: 0 }
}

/// Returns how many calls a measured call represents. A slow call represents only itself, because every slow call is
/// recorded.
fn weighted(took: u64, weight: u64) -> u64 {
    if took < NOTICED { weight } else { 1 }
}

#[inline(never)]
fn measured<T>(thread: &Clocking, root: bool, weight: u64, call: impl FnOnce() -> T) -> (T, Option<Timed>) {
    let around_us = thread.children.replace(0);
    let began = nanoseconds();
    let result = call();
    let now = nanoseconds();
    let took = now - began;
    let own = took.saturating_sub(thread.children.get());
    thread.children.set(around_us + took);
    thread.calls.set(thread.calls.get() + 1);
    let last = thread.last.get();
    let passed = if last == 0 { took } else { now - last };
    let mut whole = None;
    if root {
        MEASURING.store(MEASURING.load(Relaxed).saturating_sub(1), Relaxed);
        thread.children.set(0);
        thread.weight.set(0);
        thread.last.set(now);
        let usual = thread.usual.get();
        let usual = if usual == 0 { took } else { (7 * usual + took) / 8 };
        thread.usual.set(usual);
        let gap = next_gap(&thread.random, &thread.most, interval(usual, thread.calls.get(), PRICE, LONGEST));
        thread.gap.set(gap);
        thread.countdown.set(gap);
        whole = Some((took, weighted(took, weight)));
    }
    (result, Some(Timed { own: Some((own, weighted(own, weight))), whole, passed }))
}
