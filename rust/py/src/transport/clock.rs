//! The time that a reader waits for one item: its limit, what becomes of a wait that is longer, and the warning before.

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

/// What is done about a wait that is too long, instead of an error.
struct Hang {
    /// Length of the wait at which `on_hang` is called next.
    next: Duration,
    /// Called with (peer, seconds, seconds of patience); ends a process that hangs, and says whether it has ended one.
    on_hang: Py<PyAny>,
}

/// How often in the time of the limit a wait is looked at, to see whether those waited for make progress.
const LOOKS: u32 = 4;
/// The limit doubles so often at most.
const MOST_TRIES: u32 = 8;

/// The clock of one wait, which may be several sleeps long.
pub struct Clock {
    /// The longest wait.
    limit: Option<Duration>,
    /// The kind of peer, for the message of the limit.
    name: String,
    /// When the wait for the next item began.
    began: Option<Instant>,
    stall: Option<Stall>,
    hang: Option<Hang>,
    /// Processes that were ended because this item did not come. Each has twice as long as the one before it.
    tries: u32,
}

impl Clock {
    pub fn new(limit: Option<Duration>, name: &str) -> Self {
        Self { limit, name: name.to_owned(), began: None, stall: None, hang: None, tries: 0 }
    }

    /// Calls `on_hang` instead of raising when a wait is too long, and again and again before that.
    pub fn tell_hang_to(&mut self, on_hang: Py<PyAny>) {
        self.hang = Some(Hang { next: Duration::ZERO, on_hang });
        self.rearm();
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

    /// Ends the wait: the next one begins anew, for the same item perhaps, that another process is to make.
    #[inline]
    pub fn stop(&mut self) {
        self.began = None;
    }

    /// Notes that an item has come, or is not waited for any more.
    #[inline]
    pub fn came(&mut self) {
        self.began = None;
        self.tries = 0;
    }

    /// Warns, and looks for what hangs, at the full patience again.
    pub fn rearm(&mut self) {
        if let Some(stall) = &mut self.stall {
            stall.next = stall.patience;
        }
        if let (Some(hang), Some(limit)) = (&mut self.hang, self.limit) {
            hang.next = limit / LOOKS;
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

    /// Warns if a wait for `peer` is that long.
    pub fn tell_stall(&mut self, py: Python<'_>, peer: Option<usize>, waited: Duration) -> PyResult<()> {
        if let Some(stall) = self.stall.as_mut().filter(|stall| waited >= stall.next) {
            stall.next = stall.next.saturating_mul(2);
            stall.on_stall.call1(py, (peer, waited.as_secs_f64()))?;
        }
        Ok(())
    }

    /// Has it looked whether somebody hangs, if a wait is that long.
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

    /// Gives the callbacks away, to be dropped.
    pub fn clear(&mut self) -> [Option<Py<PyAny>>; 2] {
        [self.stall.take().map(|stall| stall.on_stall), self.hang.take().map(|hang| hang.on_hang)]
    }
}
