//! The one way into calls that wait: without the GIL, in slices, with Python's signals handled in between.
//!
//! Runs in the thread that waits. A signal handler's exception ends the wait and is passed on. Nothing is lost by that:
//! a slice that found its event ends the wait before signals are handled, and an event that comes later stays where it
//! is.

use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Longest time without a look at signals.
const LONGEST_SLICE: Duration = Duration::from_millis(100);

/// Lengths of the slices of one wait: the first one, and the longest one, up to which they double.
#[derive(Clone, Copy)]
pub struct Slices {
    first: Duration,
    longest: Duration,
}

impl Slices {
    /// Slices for a sleep that its event ends.
    pub const LONG: Self = Self { first: LONGEST_SLICE, longest: LONGEST_SLICE };
    /// Slices for a sleep that its event nearly always ends. The first one is short because a producer that was fast
    /// and turns slow may leave a few items without a ring (see `torchdata_core::link::wake`).
    pub const GROWING: Self = Self { first: Duration::from_millis(1), longest: LONGEST_SLICE };
    /// Slices for a sleep that no event ends.
    const POLL: Self = Self { first: Duration::from_micros(20), longest: Duration::from_millis(2) };
}

/// Waits for an event, `limit` at most; returns whether it came.
///
/// # Arguments
/// * `sleep` - sleeps for a slice or less, without the GIL; returns whether the event has come.
/// * `look` - called with the GIL after each slice in which it has not, once signals were handled; returns the same.
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

/// Waits for an event that wakes nobody, `limit` at most; returns whether it came. `look` says so, and is called at
/// once.
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
