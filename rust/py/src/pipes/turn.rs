//! Makes threads that share an iterator read one at a time, in the order of their requests.
//!
//! A signal handler that requests an item in the reading thread receives an error, because the thread would otherwise
//! wait for itself forever.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::thread::{self, Thread};

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use torchdata_core::process::{fork, watching};

use crate::enter::{self, Slices};
use crate::gil_cell::{GilCell, GilNumber};
use crate::pipes::iterators::call;
use crate::pipes::metering::Meter;
use crate::seconds::duration;

const ADDRESS: u32 = 48;

/// Returns an id of this thread. The id includes the number of forks, because a thread of the parent process may have
/// the same thread id.
fn this_thread() -> u64 {
    watching::this_thread() ^ (fork::generation() << ADDRESS)
}

fn is_inherited(thread: u64) -> bool {
    thread >> ADDRESS != this_thread() >> ADDRESS
}

#[derive(Default)]
struct Crowd {
    waiting: VecDeque<(u64, Thread)>,
    closed: Option<String>,
}

#[pyclass(frozen, weakref, module = "torchdata._native")]
pub struct Turn {
    reader: GilNumber,
    /// The value is 1 if threads wait or if `close` has been called, and otherwise 0. While the value is 0, a thread
    /// may read without accessing `crowd`.
    is_crowded: GilNumber,
    crowd: GilCell<Crowd>,
    process: u32,
}

pub struct TakenTurn<'a, 'py> {
    turn: &'a Turn,
    py: Python<'py>,
}

impl Drop for TakenTurn<'_, '_> {
    fn drop(&mut self) {
        self.turn.reader.store(0);
        if self.turn.is_crowded.load() != 0 {
            self.turn.call_next(self.py);
        }
    }
}

impl Default for Turn {
    fn default() -> Self {
        Self {
            reader: GilNumber::new(0),
            is_crowded: GilNumber::new(0),
            crowd: GilCell::new(Crowd::default()),
            process: std::process::id(),
        }
    }
}

impl Turn {
    pub fn take<'a, 'py>(&'a self, py: Python<'py>) -> PyResult<TakenTurn<'a, 'py>> {
        let thread = this_thread();
        if self.is_crowded.load() != 0 || !self.reader.replace(0, thread) {
            self.queue_up(py, thread, true)?;
        }
        Ok(TakenTurn { turn: self, py })
    }

    fn change<R>(&self, py: Python<'_>, change: impl FnOnce(&mut Crowd) -> R) -> R {
        self.crowd.with(py, |crowd| {
            let result = change(crowd);
            self.is_crowded.store(u64::from(!crowd.waiting.is_empty() || crowd.closed.is_some()));
            result
        })
    }

    /// Waits until this thread may use the iterator. If `reads` is true and `close` has been called, returns an error.
    #[cold]
    fn queue_up(&self, py: Python<'_>, thread: u64, reads: bool) -> PyResult<()> {
        let is_waiting = self.change(py, |crowd| {
            crowd.waiting.retain(|(one, _)| !is_inherited(*one)); // removes threads of the parent process
            crowd.waiting.iter().any(|(one, _)| *one == thread)
        });
        if is_waiting || self.reader.load() == thread {
            return Err(PyRuntimeError::new_err(
                "this thread is already reading an item, and requests another item (in a signal handler, or in a \
                 function of the pipeline): request it after the first item has arrived",
            ));
        }
        self.change(py, |crowd| crowd.waiting.push_back((thread, thread::current())));
        let outcome = self.await_turn(py, thread, reads);
        self.change(py, |crowd| crowd.waiting.retain(|(one, _)| *one != thread));
        if outcome.is_err() {
            self.call_next(py);
        }
        outcome
    }

    fn await_turn(&self, py: Python<'_>, thread: u64, reads: bool) -> PyResult<()> {
        let is_next = |py: Python<'_>| self.is_next(py, thread, reads);
        let sleep = |slice| {
            thread::park_timeout(slice);
            false
        };
        if !is_next(py)? {
            enter::wait(py, None, Slices::LONG, sleep, is_next)?;
        }
        Ok(())
    }

    /// Lets this thread use the iterator if the thread is first in the queue. Returns an error if this thread can never
    /// use the iterator, for example after a call of `close`.
    fn is_next(&self, py: Python<'_>, thread: u64, reads: bool) -> PyResult<bool> {
        let (first, closed) = self
            .crowd
            .with(py, |crowd| (crowd.waiting.front().map(|(one, _)| *one), crowd.closed.clone().filter(|_| reads)));
        if let Some(why) = closed {
            return Err(PyRuntimeError::new_err(why));
        }
        let reader = self.reader.load();
        if is_inherited(reader) && reader != 0 {
            return Err(PyRuntimeError::new_err(format!(
                "a thread of process {} was reading this iterator when process {} was forked, and this read cannot \
                 be finished here: create another loader in the child",
                self.process,
                std::process::id()
            )));
        }
        Ok(first == Some(thread) && self.reader.replace(0, thread))
    }

    #[cold]
    fn call_next(&self, py: Python<'_>) {
        if let Some(next) = self.crowd.with(py, |crowd| crowd.waiting.front().map(|(_, next)| next.clone())) {
            next.unpark();
        }
    }

    fn is_left(&self) -> bool {
        let reader = self.reader.load();
        reader == 0 || reader == this_thread() || is_inherited(reader)
    }
}

#[pymethods]
impl Turn {
    #[getter]
    fn is_mine(&self) -> bool {
        self.reader.load() == this_thread()
    }

    fn call<'py>(&self, function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = function.py();
        let thread = this_thread();
        let _turn = if self.reader.load() == thread {
            None
        } else {
            self.queue_up(py, thread, false)?;
            Some(TakenTurn { turn: self, py })
        };
        function.call0()
    }

    /// Closes the queue of threads. After a call of `close`, every request for an item raises a RuntimeError with the
    /// text `why`.
    #[pyo3(signature = (why = "this program is exiting, and one of its threads requests another item from a loader"))]
    fn close(&self, py: Python<'_>, why: &str) {
        let all: Vec<Thread> = self.change(py, |crowd| {
            crowd.closed = Some(why.to_owned());
            crowd.waiting.iter().map(|(_, one)| one.clone()).collect()
        });
        all.iter().for_each(Thread::unpark);
    }

    fn join(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let is_free = |py: Python<'_>| Ok(self.is_left() && self.crowd.with(py, |crowd| crowd.waiting.is_empty()));
        enter::poll(py, Some(duration(seconds)), is_free).map(drop)
    }

    /// Waits until no other thread reads, and returns False if another thread still reads after `seconds`.
    #[pyo3(signature = (seconds = None))]
    fn await_left(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<bool> {
        enter::poll(py, seconds.map(duration), |_| Ok(self.is_left()))
    }
}

#[pyclass(subclass, frozen, module = "torchdata._native")]
pub struct SharedIterator {
    pub(super) turn: Py<Turn>,
    next: OnceLock<Py<PyAny>>,
    pub meter: Meter,
}

impl SharedIterator {
    pub(super) fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Self { turn: Py::new(py, Turn::default())?, next: OnceLock::new(), meter: Meter::default() })
    }
}

#[pymethods]
impl SharedIterator {
    #[new]
    #[pyo3(signature = (*_arguments, **_options))]
    fn make(py: Python<'_>, _arguments: Bound<'_, PyAny>, _options: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        Self::new(py)
    }

    #[getter]
    fn turn(&self, py: Python<'_>) -> Py<Turn> {
        self.turn.clone_ref(py)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let this = slf.get();
        let _turn = this.turn.get().take(py)?;
        let next = match this.next.get() {
            Some(next) => next,
            None => {
                let found = slf.get_type().getattr(intern!(py, "next"))?.unbind();
                this.next.get_or_init(|| found)
            }
        };
        this.meter.around(py, || call(next.bind(py), slf.as_any()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.turn)?;
        visit.call(self.next.get())
    }
}
