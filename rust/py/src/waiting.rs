//! Waiting on a doorbell from Python: spin, then sleep in slices without the GIL.

use std::time::Duration;

use pyo3::prelude::*;
use torchdata_core::bell::BellRef;

/// Looks before the first sleep. Short: with more runnable threads than cores, whoever spins keeps from running
/// the one it waits for.
const SPINS: u32 = 40;
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
