//! Calls that wait: without the GIL, in slices, with Python's signals handled in between.
//!
//! This runs in the thread that waits. An exception of a signal handler ends the wait and is returned. This loses no
//! event: if the event arrives during a slice, the wait ends before signals are handled, and a later event stays
//! pending.

use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

const LONGEST_SLICE: Duration = Duration::from_millis(100);

/// The durations of the slices of a wait: the first slice, and the maximum that doubling reaches.
#[derive(Clone, Copy)]
pub struct Slices {
    first: Duration,
    longest: Duration,
}

impl Slices {
    /// Slices for a sleep that the event ends.
    pub const LONG: Self = Self { first: LONGEST_SLICE, longest: LONGEST_SLICE };
    /// Slices for a sleep that the event almost always ends. The first slice is short, because a producer that was fast
    /// and becomes slow may publish a few items without ringing (see `torchdata_core::link::wake`).
    pub const GROWING: Self = Self { first: Duration::from_millis(1), longest: LONGEST_SLICE };
    const POLL: Self = Self { first: Duration::from_micros(20), longest: Duration::from_millis(2) };
}

/// Waits for an event, for at most `limit`. Returns whether it has occurred.
///
/// # Arguments
/// * `sleep` - sleeps for at most one slice, without the GIL. Returns whether the event has occurred.
/// * `look` - called with the GIL after each slice without the event, after signals were handled. Returns whether the
///   event has occurred.
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

/// Polls for an event, for at most `limit`. Returns whether it has occurred. `look` checks for the event, and is first
/// called at once.
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
