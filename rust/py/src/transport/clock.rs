//! The time that a reader waits for one item: its limit, the action when the limit is exceeded, and the earlier
//! warnings.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyTimeoutError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

struct Stall {
    patience: Duration,
    next: Duration,
    /// Called with (peer, seconds) to warn.
    on_stall: Py<PyAny>,
}

/// What happens instead of an error when a wait is too long.
struct Hang {
    next: Duration,
    /// Called with (peer, seconds, seconds of patience). Kills a process that hangs, and returns whether it has killed
    /// one.
    on_hang: Py<PyAny>,
}

/// The number of checks per limit whether the awaited processes make progress.
const LOOKS: u32 = 4;
/// The maximum number of times that the limit is doubled.
const MOST_TRIES: u32 = 8;

/// Measures one wait, which may consist of several sleeps.
pub struct Clock {
    limit: Option<Duration>,
    /// The kind of peer, for the error message.
    name: String,
    /// When the wait for the next item began.
    began: Option<Instant>,
    stall: Option<Stall>,
    hang: Option<Hang>,
    /// The number of processes killed because this item did not arrive. Each attempt has twice the time of the previous
    /// attempt.
    tries: u32,
}

impl Clock {
    pub fn new(limit: Option<Duration>, name: &str) -> Self {
        Self { limit, name: name.to_owned(), began: None, stall: None, hang: None, tries: 0 }
    }

    /// Calls `on_hang` regularly during waits, instead of raising an error.
    pub fn tell_hang_to(&mut self, on_hang: Py<PyAny>) {
        self.hang = Some(Hang { next: Duration::ZERO, on_hang });
        self.rearm();
    }

    /// Calls `on_stall` when a wait has lasted for `patience`, and each time that its duration has doubled.
    pub fn tell_stall_to(&mut self, patience: Duration, on_stall: Py<PyAny>) {
        self.stall = Some(Stall { patience, next: patience, on_stall });
    }

    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Begins a wait, or continues the current wait.
    pub fn start(&mut self) {
        if self.began.is_none() {
            self.began = Some(Instant::now());
            self.rearm();
        }
    }

    /// Ends the wait. The next wait may be for the same item, from a replacement process.
    #[inline]
    pub fn stop(&mut self) {
        self.began = None;
    }

    /// Records that an item has arrived or was abandoned.
    #[inline]
    pub fn came(&mut self) {
        self.began = None;
        self.tries = 0;
    }

    /// Resets warnings and checks for hanging processes to the full patience.
    pub fn rearm(&mut self) {
        if let Some(stall) = &mut self.stall {
            stall.next = stall.patience;
        }
        if let (Some(hang), Some(limit)) = (&mut self.hang, self.limit) {
            hang.next = limit / LOOKS;
        }
    }

    /// Warns or returns an error, depending on the duration of the wait for `peer`. A wait while all peers are `paused`
    /// is not a stall.
    pub fn look(&mut self, py: Python<'_>, peer: Option<usize>, paused: bool) -> PyResult<()> {
        let waited = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        match &mut self.stall {
            Some(stall) if paused => stall.next = waited.saturating_add(stall.patience),
            _ => self.tell_stall(py, peer, waited)?,
        }
        match self.limit {
            Some(limit) if self.hang.is_some() => self.tell_hang(py, peer, paused, waited, limit),
            Some(limit) if waited >= limit => Err(PyTimeoutError::new_err(format!(
                "no item came from {} {} within {} s (the `timeout` of the reading service); its pipe is slower than that, \
                 or stuck",
                self.name,
                peer.map_or("?".to_owned(), |peer| peer.to_string()),
                limit.as_secs_f64(),
            ))),
            _ => Ok(()),
        }
    }

    /// Warns if the wait for `peer` is long enough.
    pub fn tell_stall(&mut self, py: Python<'_>, peer: Option<usize>, waited: Duration) -> PyResult<()> {
        if let Some(stall) = self.stall.as_mut().filter(|stall| waited >= stall.next) {
            stall.next = stall.next.saturating_mul(2);
            stall.on_stall.call1(py, (peer, waited.as_secs_f64()))?;
        }
        Ok(())
    }

    /// Calls `on_hang` if the wait has lasted long enough.
    fn tell_hang(
        &mut self,
        py: Python<'_>,
        peer: Option<usize>,
        paused: bool,
        waited: Duration,
        limit: Duration,
    ) -> PyResult<()> {
        let Some(hang) = self.hang.as_mut().filter(|hang| waited >= hang.next) else { return Ok(()) };
        if !paused {
            let patience = limit.saturating_mul(1 << self.tries.min(MOST_TRIES));
            let ended = hang.on_hang.call1(py, (peer, waited.as_secs_f64(), patience.as_secs_f64()))?;
            self.tries += u32::from(ended.extract::<bool>(py)?);
        }
        hang.next = waited.saturating_add(limit / LOOKS);
        Ok(())
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.stall.as_ref().map(|stall| &stall.on_stall))?;
        visit.call(self.hang.as_ref().map(|hang| &hang.on_hang))
    }

    /// Takes the callbacks, to be dropped by the caller.
    pub fn clear(&mut self) -> [Option<Py<PyAny>>; 2] {
        [self.stall.take().map(|stall| stall.on_stall), self.hang.take().map(|hang| hang.on_hang)]
    }
}
