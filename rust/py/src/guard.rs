//! The iterator guard: one valid iterator per pipe, counted, at less than a generator frame's cost.
//!
//! Runs in whichever process and thread iterates the pipe. A pipe owns one [`IterationToken`]; each
//! iterator made from the pipe is an [`IteratorGuard`] that remembers the number the token had then.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;

/// What a pipe knows of its current iteration. Never pickled or copied: a copy starts afresh.
///
/// The fields are atomics only to be shared without locks; the GIL orders every access.
#[pyclass(frozen, module = "torchdata._native")]
pub struct IterationToken {
    /// Number of the valid iterator; 0 before the first one. Grows by one with each `begin`.
    current: AtomicU64,
    /// Items that the valid iterator has yielded, restored and skipped ones included.
    yielded: AtomicU64,
    /// Whether the valid iterator has ended.
    finished: AtomicBool,
    /// Whether the next `begin` continues from loaded state instead of resetting the pipe.
    armed: AtomicBool,
    /// Items to drop after the next `begin`, for pipes that are replayed.
    replay: AtomicU64,
}

#[pymethods]
impl IterationToken {
    #[new]
    fn new() -> Self {
        Self {
            current: AtomicU64::new(0),
            yielded: AtomicU64::new(0),
            finished: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            replay: AtomicU64::new(0),
        }
    }

    /// Starts an iteration, which invalidates every older iterator.
    ///
    /// Returns (iterator id, whether loaded state is to be continued, items to drop by replay).
    fn begin(&self) -> (u64, bool, u64) {
        let id = self.current.fetch_add(1, Relaxed) + 1;
        let resumed = self.armed.swap(false, Relaxed);
        let replay = self.replay.swap(0, Relaxed);
        if !resumed {
            self.yielded.store(0, Relaxed);
        }
        self.finished.store(false, Relaxed);
        (id, resumed, replay)
    }

    /// Invalidates every iterator made so far without starting a new iteration.
    fn invalidate(&self) {
        self.current.fetch_add(1, Relaxed);
    }

    /// Makes the next iteration continue after `yielded` items instead of resetting the pipe.
    fn arm(&self, yielded: u64) {
        self.armed.store(true, Relaxed);
        self.replay.store(0, Relaxed);
        self.yielded.store(yielded, Relaxed);
    }

    /// Makes the next iteration start anew and drop its first `count` items.
    fn arm_replay(&self, count: u64) {
        self.armed.store(false, Relaxed);
        self.replay.store(count, Relaxed);
    }

    /// Forgets loaded state: the next iteration starts anew.
    fn disarm(&self) {
        self.armed.store(false, Relaxed);
        self.replay.store(0, Relaxed);
    }

    /// Number of the valid iterator; 0 where the pipe was never iterated.
    #[getter]
    fn current(&self) -> u64 {
        self.current.load(Relaxed)
    }

    /// Items yielded by the valid iterator.
    #[getter]
    fn yielded(&self) -> u64 {
        self.yielded.load(Relaxed)
    }

    /// Whether loaded state waits to be continued.
    #[getter]
    fn armed(&self) -> bool {
        self.armed.load(Relaxed)
    }

    /// Whether the valid iterator has ended.
    #[getter]
    fn finished(&self) -> bool {
        self.finished.load(Relaxed)
    }

    /// A copy or an unpickled token is a fresh one.
    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, ())> {
        Ok((slf.get_type().into_any().unbind(), ()))
    }
}

/// The iterator that `iter(pipe)` returns.
#[pyclass(frozen, module = "torchdata._native")]
pub struct IteratorGuard {
    /// The pipe, kept alive while it is iterated.
    #[pyo3(get)]
    pipe: Py<PyAny>,
    /// The iterator made by the pipe's own `__iter__`.
    #[pyo3(get)]
    iterator: Py<PyAny>,
    /// The pipe's token.
    token: Py<IterationToken>,
    /// Valid as long as the token's current number is this one.
    id: u64,
    /// The slot of the iterator's type that gives the next item.
    next: ffi::iternextfunc,
    /// Whether a StopIteration that is raised, other than by just ending, is the fault of a user's function: the
    /// built-in `map` passes it on, and it must not end the iteration as if there were no more data (PEP 479).
    sealed: bool,
}

#[pymethods]
impl IteratorGuard {
    #[new]
    fn new(
        pipe: Py<PyAny>,
        iterator: &Bound<'_, PyAny>,
        token: Py<IterationToken>,
        iterator_id: u64,
    ) -> PyResult<Self> {
        let class = iterator.get_type();
        // SAFETY: the slot of a live type; a function of the iternext kind, or NULL where the type is no iterator.
        let next: Option<ffi::iternextfunc> =
            unsafe { std::mem::transmute(ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_iternext)) };
        let Some(next) = next else {
            return Err(PyTypeError::new_err(format!(
                "__iter__ of {} must return an iterator, but returned an object of type {}",
                describe(pipe.bind(iterator.py())),
                class.name()?
            )));
        };
        let sealed = class.is(PyModule::import(iterator.py(), "builtins")?.getattr("map")?);
        Ok(Self { pipe, iterator: iterator.clone().unbind(), token, id: iterator_id, next, sealed })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let token = self.token.get();
        if token.current.load(Relaxed) != self.id {
            return Err(self.invalidated(py));
        }
        // SAFETY: the GIL is held, and the slot is that of the iterator's type; a NULL result is handled below.
        let item = unsafe { (self.next)(self.iterator.as_ptr()) };
        if item.is_null() {
            return self.ended(py);
        }
        token.yielded.store(token.yielded.load(Relaxed) + 1, Relaxed);
        // SAFETY: a new reference, which is handed on.
        Ok(Some(unsafe { Bound::from_owned_ptr(py, item) }.unbind()))
    }

    /// Anything else is asked of the pipe's own iterator (a generator's `close`, for one).
    fn __getattr__(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        self.iterator.getattr(py, name)
    }
}

impl IteratorGuard {
    /// The cold half of `__next__`: the end, or an exception, which gets a note that names the pipe.
    #[cold]
    fn ended(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some(error) = PyErr::take(py) else {
            self.token.get().finished.store(true, Relaxed);
            return Ok(None);
        };
        let error = if !error.is_instance_of::<PyStopIteration>(py) {
            error
        } else if self.sealed {
            self.leaked(py, error)
        } else {
            self.token.get().finished.store(true, Relaxed);
            return Ok(None);
        };
        let value = error.value(py);
        if !value.hasattr(intern!(py, "__notes__"))? {
            let note = format!("This exception was raised while iterating {}.", describe(self.pipe.bind(py)));
            value.call_method1(intern!(py, "add_note"), (note,))?;
        }
        Err(error)
    }

    /// The error for a StopIteration that a user's function raised.
    fn leaked(&self, py: Python<'_>, error: PyErr) -> PyErr {
        let raised = PyRuntimeError::new_err(format!(
            "{}: the function raised StopIteration, which would end the iteration although the source has more items; \
             catch it in the function (`next(iterator, default)` does not raise it)",
            describe(self.pipe.bind(py))
        ));
        raised.set_cause(py, Some(error));
        raised
    }

    #[cold]
    fn invalidated(&self, py: Python<'_>) -> PyErr {
        PyRuntimeError::new_err(format!(
            "This iterator has been invalidated because another iterator has been created from the same \
             IterDataPipe: {}. A pipe has one valid iterator at a time; `.fork()` gives a pipe several readers.",
            describe(self.pipe.bind(py))
        ))
    }
}

/// A pipe in words; one whose `repr` fails is named by its class.
fn describe(pipe: &Bound<'_, PyAny>) -> String {
    pipe.repr()
        .map(|text| text.to_string())
        .or_else(|_| pipe.get_type().name().map(|name| name.to_string()))
        .unwrap_or_else(|_| "a pipe".to_owned())
}
