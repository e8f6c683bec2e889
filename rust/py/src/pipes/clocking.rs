//! Taking the time of pipes: of one call in so many, so that it costs little whatever the items are.
//!
//! Guards that take time call their iterator through `next_timed`; others never come here. A call that no other is
//! around is a root. Of one root call in `interval` the time is taken, of all calls within it, and each pipe's own time
//! is what is left of its calls without those of the pipes that it reads in the same thread. The interval follows the
//! time that root calls take, and varies at random, so that no rhythm of the pipeline meets it. A call never stands for
//! more than the time that has passed since the last one that was timed.
//!
//! Each item of a root costs many nested calls. A guard that was nested when it last came here stays away while no root
//! call is timed ([`is_measuring`]), and comes back now and then, as its reader may be another one by then.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use torchdata_core::stats::{coarse_nanoseconds, nanoseconds};

/// The cost of taking the time of one call, in nanoseconds.
const COST: u64 = 60;
/// A call is timed if that costs less than one part in so many of the calls that it stands for: `PRICE` if all pipes
/// are timed, `PRICE_METERED` if only the loader is.
pub const PRICE: u64 = 200;
pub const PRICE_METERED: u64 = 1000;
/// The most calls that one stands for: `LONGEST` if all pipes are timed, `LONGEST_METERED` if only the loader is.
pub const LONGEST: u64 = 128;
pub const LONGEST_METERED: u64 = 1024;
/// A call that was not timed and took longer is noticed by the coarse clock.
pub const NOTICED: u64 = 12_000_000;

/// Nested calls after which a guard looks anew whether it still is nested.
pub const LOOK_AGAIN: u32 = 128;

/// Root calls under way, of all threads, of which the time is taken. A statistic of statistics: one that is too high
/// costs time, and one that is too low the times of one call.
static MEASURING: AtomicU32 = AtomicU32::new(0);

/// Whether the time of any root call is taken at this moment.
#[inline]
pub fn is_measuring() -> bool {
    MEASURING.load(Relaxed) != 0
}

/// A thread's knowledge of the calls that it is in.
struct Clocking {
    /// The root call, and those in it that have come here.
    depth: Cell<u32>,
    /// Calls that the root call that is timed stands for; 0: it is not timed.
    weight: Cell<u64>,
    /// Nanoseconds of the calls that the innermost timed call has made.
    children: Cell<u64>,
    /// Timed calls within the root call.
    calls: Cell<u64>,
    /// Root calls until the next that is timed.
    countdown: Cell<u64>,
    gap: Cell<u64>,
    /// The average of the next gap: see [`next_gap`].
    most: Cell<u64>,
    /// When the last timed root call ended.
    last: Cell<u64>,
    /// The average time of the last root calls.
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

/// A number below `2 * mean`, at least 1, of that mean.
pub fn around(random: &Cell<u64>, mean: u64) -> u64 {
    let mut bits = random.get();
    bits ^= bits << 13;
    bits ^= bits >> 7;
    bits ^= bits << 17;
    random.set(bits);
    if mean <= 1 { 1 } else { 1 + (bits >> 33) % (2 * mean - 1) }
}

/// How many calls of so many nanoseconds one stands for, if timing it costs that of `calls`.
pub fn interval(usual: u64, calls: u64, price: u64, longest: u64) -> u64 {
    (calls * COST * price / usual.max(1)).clamp(1, longest)
}

/// How many calls lie between one that was timed and the next, of the given mean; but after the first ones less, twice
/// as many from time to time, so that something is known of a hundred items as well.
pub fn next_gap(random: &Cell<u64>, most: &Cell<u64>, mean: u64) -> u64 {
    let least = mean.min(most.get());
    most.set((2 * most.get()).min(LONGEST_METERED));
    around(random, least)
}

/// Begins anew: with the first call, which stands for itself. Of calls that this thread is in nothing is known any
/// more: it may be the only one of a child that was forked in their midst, and others before were of another pipeline.
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

/// The findings of a call.
pub struct Timed {
    /// Nanoseconds in the pipe alone, if the call was timed, and how many it stands for at most.
    pub own: Option<(u64, u64)>,
    /// Nanoseconds of a whole root call and of the time it stands for, if it was timed or took long.
    pub whole: Option<(u64, u64)>,
    /// Nanoseconds since the last root call that was timed.
    pub passed: u64,
}

/// Makes a call, and takes its time if it is its turn. Also gives whether another call is around it.
#[inline]
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

#[inline]
fn unmeasured_root<T>(thread: &Clocking, call: impl FnOnce() -> T) -> (T, Option<Timed>) {
    let began = coarse_nanoseconds();
    let result = call();
    let took = coarse_nanoseconds().saturating_sub(began);
    (result, (took >= NOTICED).then(|| notice(thread, took)))
}

/// A call that was not timed took long: so may the next one, which is.
#[cold]
fn notice(thread: &Clocking, took: u64) -> Timed {
    thread.usual.set((7 * thread.usual.get() + took) / 8);
    thread.countdown.set(1);
    thread.gap.set(1);
    Timed { own: None, whole: Some((took, 1)), passed: 0 }
}

/// How many calls one of those that are timed stands for: one that took long, for itself, as such calls are noticed
/// that are not timed.
fn stands_for(took: u64, weight: u64) -> u64 {
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
        whole = Some((took, stands_for(took, weight)));
    }
    (result, Some(Timed { own: Some((own, stands_for(own, weight))), whole, passed }))
}
