//! Waiting on a doorbell from Python: spin, yield, then sleep in slices without the GIL.

use std::time::Duration;

use pyo3::prelude::*;
use torchdata_core::bell::BellRef;

/// Looks before the first sleep. Short: with more runnable threads than cores, whoever spins keeps from running
/// the one it waits for.
const SPINS: u32 = 40;
/// Turns given to other threads before the first sleep. Where producer and consumer share a core, the other side runs
/// meanwhile, fills or empties the ring, and neither pays for a sleep and a wake-up: with small windows on 2 cores this is
/// a factor of 3 to 6. Where nobody else wants the core it costs a few system calls.
const YIELDS: u32 = 10;
/// First sleep; it doubles up to `LONGEST_SLICE`. Short, because a producer that was fast and turns slow may leave a
/// few items without a ring (see `torchdata_core::wake`).
const FIRST_SLICE: Duration = Duration::from_millis(1);
/// No wait goes on for longer than this without a look at signals, peers and time-outs.
const LONGEST_SLICE: Duration = Duration::from_millis(100);

/// Waits until `ready`, which may be called many times and without the GIL.
///
/// After each slice Python's signals are handled (so that Ctrl-C works) and `tick` is called with the time waited so
/// far; an error from either ends the wait.
pub fn wait_until(
    py: Python<'_>,
    bell: &BellRef,
    mut ready: impl FnMut() -> bool + Send,
    mut tick: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<()> {
    for _ in 0..SPINS {
        if ready() {
            return Ok(());
        }
        std::hint::spin_loop();
    }
    for _ in 0..YIELDS {
        py.detach(std::thread::yield_now);
        if ready() {
            return Ok(());
        }
    }
    let mut slice = FIRST_SLICE;
    loop {
        if py.detach(|| bell.wait(slice, &mut ready)) {
            return Ok(());
        }
        py.check_signals()?;
        tick(py)?;
        slice = (slice * 2).min(LONGEST_SLICE);
    }
}
