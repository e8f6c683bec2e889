//! Waiting on a doorbell from Python: spin, yield, then sleep in slices without the GIL.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use torchdata_core::process::board::BellRef;
use torchdata_core::stats::WaitRef;

use crate::enter::{self, Slices};

/// Looks before the first sleep. Short: with more runnable threads than cores, a thread that spins keeps the one it
/// waits for from running.
const SPINS: u32 = 40;
/// Turns given to other threads before the first sleep. If producer and consumer share a core, the other side runs
/// meanwhile, fills or empties the ring, and neither pays for a sleep and a wake-up: with small windows on 2 cores this
/// is a factor of 3 to 6. If no other thread wants the core it costs a few system calls.
const YIELDS: u32 = 10;
/// A sleep that ends sooner was one too many: the waiter gives way for as long as before.
const NEAR: Duration = Duration::from_micros(50);
/// How often a waiter that depends on other processes looks whether these are alive, without the GIL: no bell rings for
/// a death. Two system calls in this time, some thousandths of a core.
const GLANCE: Duration = Duration::from_millis(10);

/// Turns that the next wait gives away: all while that helps, fewer with each wait that it did not, down to none.
/// Beside slow producers every turn given away would only cost them two switches of context. Statistics, no
/// synchronisation.
static TURNS: AtomicU32 = AtomicU32::new(YIELDS);
/// Waits since giving way was tried last.
static SINCE_TRIED: AtomicU32 = AtomicU32::new(0);
/// After so many waits without it, giving way is tried again.
const TRY_AGAIN: u32 = 16;

fn turns_to_give() -> u32 {
    let turns = TURNS.load(Relaxed);
    if turns > 0 {
        return turns;
    }
    let since = SINCE_TRIED.load(Relaxed) + 1;
    SINCE_TRIED.store(since % TRY_AGAIN, Relaxed);
    if since == TRY_AGAIN { 2 } else { 0 }
}

/// Waits until `ready`, which may be called many times and without the GIL.
///
/// `meter` counts the wait, unless it is over after a few looks. `asleep` is called before the first sleep. After each
/// slice Python's signals are handled (so that Ctrl-C works) and `tick` is called; an error from either ends the wait.
pub fn wait_until(
    py: Python<'_>,
    bell: &BellRef,
    meter: Option<&WaitRef>,
    ready: impl FnMut() -> bool + Send,
    asleep: impl FnOnce(),
    tick: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<()> {
    wait_among(py, bell, meter, None, ready, asleep, tick)
}

/// The same for a waiter that depends on others: if `bereft`, called every few milliseconds without the GIL, the slice
/// is over, and it is for `tick` to see why.
pub fn wait_among(
    py: Python<'_>,
    bell: &BellRef,
    meter: Option<&WaitRef>,
    bereft: Option<&(dyn Fn() -> bool + Sync)>,
    mut ready: impl FnMut() -> bool + Send,
    asleep: impl FnOnce(),
    mut tick: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<()> {
    for _ in 0..SPINS {
        if ready() {
            return Ok(());
        }
        std::hint::spin_loop();
    }
    let _waiting = meter.map(WaitRef::begin);
    let turns = turns_to_give();
    for _ in 0..turns {
        py.detach(std::thread::yield_now);
        if ready() {
            TURNS.store(YIELDS, Relaxed);
            return Ok(());
        }
    }
    asleep();
    let since = Instant::now();
    let until_ready = |slice| sleep(bell, slice, bereft, &mut ready);
    enter::wait(py, None, Slices::GROWING, until_ready, |py| tick(py).map(|()| false))?;
    TURNS.store(if since.elapsed() < NEAR { YIELDS } else { turns / 2 }, Relaxed);
    Ok(())
}

/// Sleeps until `ready` or the end of the slice. Rings for something else (the item of a worker whose turn has not
/// come) are slept on without taking the GIL in between.
fn sleep(
    bell: &BellRef,
    slice: Duration,
    bereft: Option<&(dyn Fn() -> bool + Sync)>,
    ready: &mut impl FnMut() -> bool,
) -> bool {
    let mut now = Instant::now();
    let end = now + slice;
    let mut look = now + GLANCE;
    loop {
        let until = if bereft.is_some() { look.min(end) } else { end };
        if bell.wait(until - now, &mut *ready) {
            return true;
        }
        now = Instant::now();
        if now >= end {
            return false;
        }
        if now >= look {
            if bereft.is_some_and(|bereft| bereft()) {
                return false;
            }
            look = now + GLANCE;
        }
    }
}
