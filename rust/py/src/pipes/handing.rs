//! An iterator whose items Python code hands over, of which Ctrl-C loses none.
//!
//! Python handles signals between any two instructions: an item that was taken, and is not yet returned, would be lost
//! if the handler raises. So there are two steps. Waiting may be cut off anywhere, and leaves the item where the next
//! call finds it. Handing over is short; Ctrl-C is noted meanwhile, and comes when the item has left, with no Python
//! code in between.
//!
//! Runs in whichever threads read, one after the other. Signals are handled in the main thread alone, so in any other
//! one nothing is done.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::pipes::metering::Meter;
use crate::pipes::turn::Turn;
use crate::transport::stats::PyStatsBoard;

/// The base of such iterators. Subclasses have `_wait()`, which raises StopIteration at the end, and `_hand_over()`,
/// which returns a tuple of the item, or None if it must wait again.
#[pyclass(subclass, frozen, module = "torchdata._native")]
pub struct HandingIterator {
    turn: Py<Turn>,
    meter: Meter,
}

#[pymethods]
impl HandingIterator {
    #[new]
    #[pyo3(signature = (*_arguments, **_options))]
    fn new(py: Python<'_>, _arguments: Bound<'_, PyAny>, _options: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self { turn: Py::new(py, Turn::default())?, meter: Meter::new() })
    }

    /// The turn of threads that read.
    #[getter]
    fn turn(&self, py: Python<'_>) -> Py<Turn> {
        self.turn.clone_ref(py)
    }

    /// Counts and times the items of an epoch, which begins with the next one, at a pipe of the page of main.
    fn count_into(&self, py: Python<'_>, board: &PyStatsBoard, page: usize, pipe: usize) -> PyResult<()> {
        self.meter.count_into(py, board.pipe(page, pipe)?);
        Ok(())
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let _turn = slf.get().turn.get().take(py)?;
        slf.get().meter.around(py, || {
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

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.turn)
    }
}

/// The handler of Ctrl-C meanwhile: notes it. A second press is passed on, so that a function of the user's that hangs
/// can be ended.
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

/// Ctrl-C is noted as long as this lives.
struct Deferred<'py> {
    py: Python<'py>,
    noted: Option<Bound<'py, Noted>>,
}

impl<'py> Deferred<'py> {
    /// Begins. Raises what was pressed before.
    fn new(py: Python<'py>) -> PyResult<Self> {
        let handler = signals(py)?.getattr("getsignal")?.call1((libc::SIGINT,))?;
        if !handler.is_callable() {
            return Ok(Self { py, noted: None }); // it is ignored, or kills
        }
        let noted = Bound::new(py, Noted { pressed: AtomicBool::new(false), handler: handler.unbind() })?;
        match install(py, noted.as_any()) {
            Ok(()) => Ok(Self { py, noted: Some(noted) }),
            Err(error) if error.is_instance_of::<PyValueError>(py) => Ok(Self { py, noted: None }), // not the main thread
            Err(error) => Err(error),
        }
    }

    /// Ends: what was pressed meanwhile comes once the caller has returned to Python code.
    fn end(mut self) -> PyResult<()> {
        self.restore()
    }

    fn restore(&mut self) -> PyResult<()> {
        let Some(noted) = self.noted.take() else { return Ok(()) };
        let current = signals(self.py)?.getattr("getsignal")?.call1((libc::SIGINT,))?;
        let restored = if current.is(&noted) {
            install(self.py, noted.get().handler.bind(self.py))
        } else {
            Ok(()) // the user's program has put one of its own there meanwhile
        };
        if noted.get().pressed.load(Relaxed) {
            // SAFETY: the GIL is held. It marks the signal as arrived, and runs no handler.
            unsafe { ffi::PyErr_SetInterruptEx(libc::SIGINT as c_int) };
        }
        restored
    }
}

/// The native half of Python's module `signal`, whose functions run no Python code. Made at import.
pub fn signals(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    MODULE.get_or_try_init(py, || py.import("_signal").map(Bound::unbind)).map(|module| module.bind(py))
}

/// Makes a handler that of Ctrl-C. A press before that goes to the one that is replaced.
fn install<'py>(py: Python<'py>, handler: &Bound<'py, PyAny>) -> PyResult<()> {
    signals(py)?.getattr("signal")?.call1((libc::SIGINT, handler)).map(drop)
}
