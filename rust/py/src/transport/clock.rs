//! The time that a reader waits for one item: its limit, and the warning before that.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyTimeoutError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

/// A warning that a wait is long.
struct Stall {
    patience: Duration,
    /// Length of the wait at which `on_stall` is called next.
    next: Duration,
    /// Called with (peer, seconds); warns.
    on_stall: Py<PyAny>,
}

/// The clock of one wait, which may be several sleeps long.
pub struct Clock {
    /// The longest wait.
    limit: Option<Duration>,
    /// The kind of peer, for the message of the limit.
    name: String,
    /// When the wait for the next item began.
    began: Option<Instant>,
    stall: Option<Stall>,
}

impl Clock {
    pub fn new(limit: Option<Duration>, name: &str) -> Self {
        Self { limit, name: name.to_owned(), began: None, stall: None }
    }

    /// Calls `on_stall` when a wait has lasted for `patience`, and each time that it has lasted twice as long.
    pub fn tell_stall_to(&mut self, patience: Duration, on_stall: Py<PyAny>) {
        self.stall = Some(Stall { patience, next: patience, on_stall });
    }

    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Begins a wait, unless one is under way, whose clock goes on.
    pub fn start(&mut self) {
        if self.began.is_none() {
            self.began = Some(Instant::now());
            self.rearm();
        }
    }

    /// Ends the wait: the next one begins anew.
    #[inline]
    pub fn stop(&mut self) {
        self.began = None;
    }

    /// Warns at the full patience again.
    pub fn rearm(&mut self) {
        if let Some(stall) = &mut self.stall {
            stall.next = stall.patience;
        }
    }

    /// Warns and raises as the length of the wait for `peer` asks. A wait while all are `paused` is no stall.
    pub fn look(&mut self, py: Python<'_>, peer: Option<usize>, paused: bool) -> PyResult<()> {
        let waited = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        match &mut self.stall {
            Some(stall) if paused => stall.next = waited.saturating_add(stall.patience),
            _ => self.tell_stall(py, peer, waited)?,
        }
        match self.limit {
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

    /// Warns if a wait for `peer` is that long.
    pub fn tell_stall(&mut self, py: Python<'_>, peer: Option<usize>, waited: Duration) -> PyResult<()> {
        if let Some(stall) = self.stall.as_mut().filter(|stall| waited >= stall.next) {
            stall.next = stall.next.saturating_mul(2);
            stall.on_stall.call1(py, (peer, waited.as_secs_f64()))?;
        }
        Ok(())
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.stall.as_ref().map(|stall| &stall.on_stall))
    }

    /// Gives the callback away, to be dropped.
    pub fn clear(&mut self) -> Option<Py<PyAny>> {
        self.stall.take().map(|stall| stall.on_stall)
    }
}
