//! Waits for events without the GIL, in a series of short sleeps (slices). Between two sleeps, Python's signal handlers
//! can run.
//!
//! If a signal handler raises an exception, the wait ends with this exception. If the awaited event occurs while a
//! signal handler raises an exception, the event is not lost, and the next wait ends immediately.

use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

const LONGEST_SLICE: Duration = Duration::from_millis(100);

/// The durations of the slices within one wait. Each slice is twice as long as the preceding slice, up to `longest`.
#[derive(Clone, Copy)]
pub struct Slices {
    first: Duration,
    longest: Duration,
}

impl Slices {
    /// The slices of a wait for an event that always wakes up the sleeping thread.
    pub const LONG: Self = Self { first: LONGEST_SLICE, longest: LONGEST_SLICE };
    /// The slices of a wait for an event that may fail to wake up the sleeping thread. The first slice is short,
    /// because an item may arrive without a wake-up.
    pub const GROWING: Self = Self { first: Duration::from_millis(1), longest: LONGEST_SLICE };
    const POLL: Self = Self { first: Duration::from_micros(20), longest: Duration::from_millis(2) };
}

/// # Arguments
/// * `sleep` - sleeps for one slice without the GIL, and returns whether the event has occurred.
/// * `look` - checks for the event. The GIL is held, and signals have been handled.
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

/// Like `wait`, but checks for the event in short intervals, because the event never wakes up this thread.
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
