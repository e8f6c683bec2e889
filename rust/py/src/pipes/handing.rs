//! Implements the base class of Python iterators that do not lose items to signals, such as Ctrl-C.
//!
//! An item would be lost if Python handled a signal after taking the item from a queue and before returning the item.
//! Signal handlers can interrupt the method `_wait`, but this method never takes an item. The method `_hand_over` takes
//! the item, and signals are delayed until the item has been returned. A signal handler that saves the state of the
//! iterator therefore finds the item either in the queue or returned.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::pipes::turn::SharedIterator;

/// `_hand_over()` returns a tuple with the item, or None if `_wait()` must be called again.
#[pyclass(extends = SharedIterator, subclass, frozen, module = "torchdata._native")]
pub struct HandingIterator;

#[pymethods]
impl HandingIterator {
    #[new]
    #[pyo3(signature = (*_arguments, **_options))]
    fn new(
        py: Python<'_>,
        _arguments: Bound<'_, PyAny>,
        _options: Option<Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        Ok(PyClassInitializer::from(SharedIterator::new(py)?).add_subclass(Self))
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let shared = slf.as_super().get();
        let _turn = shared.turn.get().take(py)?;
        shared.meter.around(py, || {
            loop {
                slf.call_method0("_wait")?;
                let deferred = Deferred::new(py)?;
                let handed = slf.call_method0("_hand_over");
                deferred.end()?;
                let handed = handed?;
                if !handed.is_none() {
                    return handed.get_item(0);
                }
            }
        })
    }
}

/// The signals that terminals and clusters send to programs. SIGALRM is not delayed, because its handler may end a
/// function of the user that hangs.
const DELAYED: [c_int; 5] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// A temporary signal handler that only records a signal. A second signal is passed to the previous handler, so that
/// the user can interrupt a function that hangs.
#[pyclass(frozen)]
struct Noted {
    signal: c_int,
    arrived: AtomicBool,
    handler: Py<PyAny>,
}

#[pymethods]
impl Noted {
    fn __call__(&self, py: Python<'_>, number: Bound<'_, PyAny>, frame: Bound<'_, PyAny>) -> PyResult<()> {
        if self.arrived.fetch_xor(true, Relaxed) {
            self.handler.call1(py, (number, frame))?;
        }
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.handler)
    }
}

struct Deferred<'py> {
    py: Python<'py>,
    noted: Vec<Bound<'py, Noted>>,
}

impl<'py> Deferred<'py> {
    /// Handles signals that have already arrived, and then installs temporary handlers.
    fn new(py: Python<'py>) -> PyResult<Self> {
        let mut deferred = Self { py, noted: Vec::new() };
        match DELAYED.iter().try_for_each(|&signal| deferred.delay(signal)) {
            Err(error) if !error.is_instance_of::<PyValueError>(py) => deferred.end().and(Err(error)),
            _ => Ok(deferred), // Python reports a ValueError outside the main thread
        }
    }

    fn delay(&mut self, signal: c_int) -> PyResult<()> {
        let handler = signals(self.py)?.getattr("getsignal")?.call1((signal,))?;
        if handler.is_callable() {
            let noted = Noted { signal, arrived: AtomicBool::new(false), handler: handler.unbind() };
            let noted = Bound::new(self.py, noted)?;
            install(self.py, signal, noted.as_any())?;
            self.noted.push(noted);
        }
        Ok(()) // otherwise, the signal is ignored or kills the process
    }

    fn end(self) -> PyResult<()> {
        let mut ended = Ok(());
        for noted in &self.noted {
            ended = ended.and(self.restore(noted));
        }
        ended
    }

    fn restore(&self, noted: &Bound<'py, Noted>) -> PyResult<()> {
        let signal = noted.get().signal;
        let current = signals(self.py)?.getattr("getsignal")?.call1((signal,))?;
        let restored = if current.is(noted) {
            install(self.py, signal, noted.get().handler.bind(self.py))
        } else {
            Ok(()) // user code has installed another signal handler in the meantime
        };
        if noted.get().arrived.load(Relaxed) {
            // SAFETY: the GIL is held. `PyErr_SetInterruptEx` only marks the signal as received, and runs no signal
            // handler.
            unsafe { ffi::PyErr_SetInterruptEx(signal) };
        }
        restored
    }
}

/// Returns Python's built-in module `_signal`. The functions of `_signal` run no Python code, in contrast to the
/// functions of the module `signal`.
pub fn signals(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    MODULE.get_or_try_init(py, || py.import("_signal").map(Bound::unbind)).map(|module| module.bind(py))
}

fn install<'py>(py: Python<'py>, signal: c_int, handler: &Bound<'py, PyAny>) -> PyResult<()> {
    signals(py)?.getattr("signal")?.call1((signal, handler)).map(drop)
}
