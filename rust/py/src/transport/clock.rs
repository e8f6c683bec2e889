//! Limits how long a reader waits for one item, and reports long waits.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyTimeoutError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

struct Stall {
    patience: Duration,
    next: Duration,
    /// A callback with the arguments (peer, seconds), which warns the user of a long wait.
    on_stall: Py<PyAny>,
}

struct Hang {
    next: Duration,
    /// `on_hang(peer, seconds, patience)` kills a process that hangs, or returns false.
    on_hang: Py<PyAny>,
}

const CHECKS: u32 = 4;
const MOST_TRIES: u32 = 8;

pub struct Clock {
    pub limit: Option<Duration>,
    name: String,
    began: Option<Instant>,
    stall: Option<Stall>,
    hang: Option<Hang>,
    /// The number of processes that were killed during the wait for this item. Each kill doubles the item's time limit.
    tries: u32,
}

impl Clock {
    pub fn new(limit: Option<Duration>, name: &str) -> Self {
        Self { limit, name: name.to_owned(), began: None, stall: None, hang: None, tries: 0 }
    }

    pub fn report_hang_to(&mut self, on_hang: Py<PyAny>) {
        self.hang = Some(Hang { next: Duration::ZERO, on_hang });
        self.rearm();
    }

    /// Calls `on_stall` once a wait has lasted for `patience`, and again whenever the duration of the wait has doubled.
    pub fn report_stall_to(&mut self, patience: Duration, on_stall: Py<PyAny>) {
        self.stall = Some(Stall { patience, next: patience, on_stall });
    }

    pub fn start(&mut self) {
        if self.began.is_none() {
            self.began = Some(Instant::now());
            self.rearm();
        }
    }

    /// Ends the measurement of a wait, but does not reset `tries`, because a replacement process may compute the same
    /// item.
    #[inline]
    pub fn stop(&mut self) {
        self.began = None;
    }

    #[inline]
    pub fn note_item(&mut self) {
        self.began = None;
        self.tries = 0;
    }

    pub fn rearm(&mut self) {
        if let Some(stall) = &mut self.stall {
            stall.next = stall.patience;
        }
        if let (Some(hang), Some(limit)) = (&mut self.hang, self.limit) {
            hang.next = limit / CHECKS;
        }
    }

    /// Checks how long the reader has waited for an item, and calls `on_stall` or `on_hang` after a long wait. A wait
    /// for a paused process is not reported.
    pub fn look(&mut self, py: Python<'_>, peer: Option<usize>, paused: bool) -> PyResult<()> {
        let waited = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        match &mut self.stall {
            Some(stall) if paused => stall.next = waited.saturating_add(stall.patience),
            _ => self.report_stall(py, peer, waited)?,
        }
        match self.limit {
            Some(limit) if self.hang.is_some() => self.report_hang(py, peer, paused, waited, limit),
            Some(limit) if waited >= limit => Err(PyTimeoutError::new_err(format!(
                "no item came from {} {} within {} s (`timeout`); it, or a process that it waits for, is slower \
                 than that, is stuck, or recomputes items to resume from a state; a larger `timeout` gives it more time",
                self.name,
                peer.map_or("?".to_owned(), |peer| peer.to_string()),
                limit.as_secs_f64(),
            ))),
            _ => Ok(()),
        }
    }

    pub fn report_stall(&mut self, py: Python<'_>, peer: Option<usize>, waited: Duration) -> PyResult<()> {
        if let Some(stall) = self.stall.as_mut().filter(|stall| waited >= stall.next) {
            stall.next = stall.next.saturating_mul(2);
            stall.on_stall.call1(py, (peer, waited.as_secs_f64()))?;
        }
        Ok(())
    }

    fn report_hang(
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
        hang.next = waited.saturating_add(limit / CHECKS);
        Ok(())
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.stall.as_ref().map(|stall| &stall.on_stall))?;
        visit.call(self.hang.as_ref().map(|hang| &hang.on_hang))
    }

    pub fn clear(&mut self) -> [Option<Py<PyAny>>; 2] {
        [self.stall.take().map(|stall| stall.on_stall), self.hang.take().map(|hang| hang.on_hang)]
    }
}
