//! Waits for events without the GIL. A wait consists of time slices. Python's signals are handled between two slices.
//!
//! An exception that a signal handler raises ends the wait and is returned. No event is lost, because an event during a
//! slice ends the wait before signals are handled, and a later event ends the next wait.

use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

const LONGEST_SLICE: Duration = Duration::from_millis(100);

/// The slices of a wait. The first slice takes `first`. Each later slice is twice as long, up to `longest`.
#[derive(Clone, Copy)]
pub struct Slices {
    first: Duration,
    longest: Duration,
}

impl Slices {
    /// The slices if the awaited event always interrupts the sleep.
    pub const LONG: Self = Self { first: LONGEST_SLICE, longest: LONGEST_SLICE };
    /// The slices if the awaited event usually interrupts the sleep. The first slice is short, because a fast producer
    /// that becomes slow may publish items without waking up the consumer (see `torchdata_core::link::wake`).
    pub const GROWING: Self = Self { first: Duration::from_millis(1), longest: LONGEST_SLICE };
    const POLL: Self = Self { first: Duration::from_micros(20), longest: Duration::from_millis(2) };
}

/// Waits up to `limit` for an event. Returns whether the event has occurred.
///
/// # Arguments
/// * `sleep` - sleeps for at most one slice, without the GIL. Returns whether the event has occurred.
/// * `look` - checks for the event while the GIL is held. Called after each slice in which the event did not occur,
///   once signals were handled. Returns whether the event has occurred.
pub fn wait(
    py: Python<'_>,
    limit: Option<Duration>,
    slices: Slices,
    mut sleep: impl FnMut(Duration) -> bool + Send,
    mut look: impl FnMut(Python<'_>) -> PyResult<bool>,
) -> PyResult<bool> {
    let begun = limit.map(|limit| (Instant::now(), limit));
    let left = || begun.map_or(Duration::MAX, |(begun, limit)| limit.saturating_sub(begun.elapsed()));
    let mut slice = slices.first;
    loop {
        let bounded = slice.min(left());
        if py.detach(|| sleep(bounded)) {
            return Ok(true);
        }
        py.check_signals()?;
        if look(py)? {
            return Ok(true);
        }
        if left().is_zero() {
            return Ok(false);
        }
        slice = (slice * 2).min(slices.longest);
    }
}

/// Waits up to `limit` for an event that must be checked regularly. Returns whether the event has occurred. `look`
/// checks for the event. `look` is called immediately, and then after each slice of the wait.
pub fn poll(
    py: Python<'_>,
    limit: Option<Duration>,
    mut look: impl FnMut(Python<'_>) -> PyResult<bool>,
) -> PyResult<bool> {
    let sleep = |slice| {
        thread::sleep(slice);
        false
    };
    Ok(look(py)? || wait(py, limit, Slices::POLL, sleep, look)?)
}
