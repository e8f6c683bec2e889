//! Waits on a bell in a Python thread. The thread first checks the condition several times, then yields the
//! processor, and finally sleeps without the GIL.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use torchdata_core::process::board::BellRef;
use torchdata_core::process::turns::Turns;
use torchdata_core::stats::{WaitRef, nanoseconds};

use crate::enter::{self, Slices};

/// The number of checks before a thread yields or sleeps. The number of checks is small, because a thread that checks
/// without sleeping can prevent the awaited thread from running.
const SPINS: u32 = 40;
/// The time between two checks whether other processes have exited, because a process that exits does not ring the
/// bell. All checks of a waiting thread use less than 1 % of a core.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

static TURNS: Turns = Turns::new();

/// Waits until `ready` returns true. `ready` is called without the GIL until it returns true.
///
/// After each slice (a short sleep), Python's signals are handled and `tick` is called. An error in a signal handler or
/// in `tick` ends the wait.
pub fn wait_until(
    py: Python<'_>,
    bell: &BellRef,
    meter: Option<&WaitRef>,
    ready: impl FnMut() -> bool + Send,
    tick: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<()> {
    wait_among(py, bell, meter, None, ready, || (), tick).map(drop)
}

/// Waits like `wait_until`, but returns false once `any_exited` returns true. The callback `asleep` is called before
/// the first sleep.
pub fn wait_among(
    py: Python<'_>,
    bell: &BellRef,
    meter: Option<&WaitRef>,
    any_exited: Option<&(dyn Fn() -> bool + Sync)>,
    mut ready: impl FnMut() -> bool + Send,
    asleep: impl FnOnce(),
    mut tick: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<bool> {
    for _ in 0..SPINS {
        if ready() {
            return Ok(true);
        }
        std::hint::spin_loop();
    }
    let _waiting = meter.map(WaitRef::begin);
    let mut now = nanoseconds();
    let (turns, processes) = (TURNS.begin(now), bell.processes());
    for _ in 0..turns {
        py.detach(std::thread::yield_now);
        let began = std::mem::replace(&mut now, nanoseconds());
        let continues = TURNS.yielded(began, now, processes);
        if ready() {
            TURNS.helped();
            return Ok(true);
        }
        if !continues {
            break;
        }
    }
    asleep();
    let until_ready = |slice| sleep(bell, slice, any_exited, &mut ready);
    let mut has_exited = false;
    enter::wait(py, None, Slices::GROWING, until_ready, |py| {
        has_exited = any_exited.is_some_and(|any_exited| any_exited());
        if !has_exited {
            tick(py)?;
        }
        Ok(has_exited)
    })?;
    TURNS.slept(turns, nanoseconds() - now);
    Ok(!has_exited)
}

/// Sleeps without the GIL until `ready` returns true or the slice ends. Returns whether `ready` has returned true.
fn sleep(
    bell: &BellRef,
    slice: Duration,
    any_exited: Option<&(dyn Fn() -> bool + Sync)>,
    ready: &mut impl FnMut() -> bool,
) -> bool {
    let mut now = Instant::now();
    let end = now + slice;
    let mut look = now + CHECK_INTERVAL;
    loop {
        let until = if any_exited.is_some() { look.min(end) } else { end };
        if bell.wait(until - now, &mut *ready) {
            return true;
        }
        now = Instant::now();
        if now >= end {
            return false;
        }
        if now >= look {
            if any_exited.is_some_and(|any_exited| any_exited()) {
                return false;
            }
            look = now + CHECK_INTERVAL;
        }
    }
}
