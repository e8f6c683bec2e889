//! Waiting on a doorbell from Python: spin, yield, then sleep in slices without the GIL.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use torchdata_core::process::board::BellRef;
use torchdata_core::process::turns::Turns;
use torchdata_core::stats::{WaitRef, nanoseconds};

use crate::enter::{self, Slices};

/// Looks before the first sleep. Short: with more runnable threads than cores, a thread that spins keeps the one it
/// waits for from running.
const SPINS: u32 = 40;
/// How often a waiter that depends on other processes looks whether these are alive, without the GIL: no bell rings for
/// a death. Two system calls in this time, some thousandths of a core.
const GLANCE: Duration = Duration::from_millis(10);

/// What this process knows about giving turns away before the first sleep.
static TURNS: Turns = Turns::new();

/// Waits until `ready`, which may be called many times and without the GIL, but not again once it has said yes.
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
    let mut now = nanoseconds();
    let (turns, processes) = (TURNS.begin(now), bell.processes());
    for _ in 0..turns {
        py.detach(std::thread::yield_now);
        let began = std::mem::replace(&mut now, nanoseconds());
        let goes_on = TURNS.given(began, now, processes);
        if ready() {
            TURNS.helped();
            return Ok(());
        }
        if !goes_on {
            break;
        }
    }
    asleep();
    let until_ready = |slice| sleep(bell, slice, bereft, &mut ready);
    enter::wait(py, None, Slices::GROWING, until_ready, |py| tick(py).map(|()| false))?;
    TURNS.slept(turns, nanoseconds() - now);
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
