//! Implements the base class of Python iterators that do not lose items to Ctrl-C.
//!
//! An item would be lost if Python handled a signal after taking the item from a queue and before returning the item.
//! Signal handlers can interrupt the method `_wait`, but `_wait` never takes an item. The method `_hand_over` takes
//! the item, and delays a Ctrl-C until the item has been returned.

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

/// A temporary signal handler that only records Ctrl-C. A second Ctrl-C is passed to the previous handler, so that the
/// user can interrupt a function that hangs.
#[pyclass(frozen)]
struct Noted {
    pressed: AtomicBool,
    handler: Py<PyAny>,
}

#[pymethods]
impl Noted {
    fn __call__(&self, py: Python<'_>, number: Bound<'_, PyAny>, frame: Bound<'_, PyAny>) -> PyResult<()> {
        if self.pressed.fetch_xor(true, Relaxed) {
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
    noted: Option<Bound<'py, Noted>>,
}

impl<'py> Deferred<'py> {
    /// Handles signals that have already arrived, and then installs the temporary handler.
    fn new(py: Python<'py>) -> PyResult<Self> {
        let handler = signals(py)?.getattr("getsignal")?.call1((libc::SIGINT,))?;
        if !handler.is_callable() {
            return Ok(Self { py, noted: None }); // Ctrl-C is ignored or kills the process
        }
        let noted = Bound::new(py, Noted { pressed: AtomicBool::new(false), handler: handler.unbind() })?;
        match install(py, noted.as_any()) {
            Ok(()) => Ok(Self { py, noted: Some(noted) }),
            Err(error) if error.is_instance_of::<PyValueError>(py) => Ok(Self { py, noted: None }), // other thread
            Err(error) => Err(error),
        }
    }

    fn end(self) -> PyResult<()> {
        let Some(noted) = self.noted else { return Ok(()) };
        let current = signals(self.py)?.getattr("getsignal")?.call1((libc::SIGINT,))?;
        let restored = if current.is(&noted) {
            install(self.py, noted.get().handler.bind(self.py))
        } else {
            Ok(()) // user code has installed another signal handler in the meantime
        };
        if noted.get().pressed.load(Relaxed) {
            // SAFETY: the GIL is held. `PyErr_SetInterruptEx` only marks the signal as received, and runs no signal
            // handler.
            unsafe { ffi::PyErr_SetInterruptEx(libc::SIGINT as c_int) };
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

fn install<'py>(py: Python<'py>, handler: &Bound<'py, PyAny>) -> PyResult<()> {
    signals(py)?.getattr("signal")?.call1((libc::SIGINT, handler)).map(drop)
}
