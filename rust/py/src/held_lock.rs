//! Defines a context manager that releases its lock even if a signal handler raises an exception at any moment.
//!
//! CPython 3.14 may run a signal handler between the call of `__enter__` and the beginning of the `with` statement. If the
//! handler raises an exception, `with lock:` then never releases the lock.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Holds a lock from the creation of the object to the end of the `with` statement, or until the object is freed.
#[pyclass(module = "torchdata._native")]
pub struct HeldLock {
    lock: Option<Py<PyAny>>,
}

#[pymethods]
impl HeldLock {
    #[new]
    fn new(lock: Bound<'_, PyAny>) -> PyResult<Self> {
        lock.call_method0("acquire")?;
        Ok(Self { lock: Some(lock.unbind()) })
    }

    fn __enter__(held: Bound<'_, Self>) -> Bound<'_, Self> {
        held
    }

    #[pyo3(signature = (*_exc_info))]
    fn __exit__(&mut self, py: Python<'_>, _exc_info: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.lock.take().map_or(Ok(()), |lock| lock.call_method0(py, "release").map(drop))
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        let Some(lock) = self.lock.take() else { return };
        Python::attach(|py| {
            let raised = PyErr::take(py); // the exception that has ended the statement, if it is not handled yet
            if let Err(error) = lock.call_method0(py, "release") {
                error.write_unraisable(py, None);
            }
            raised.into_iter().for_each(|error| error.restore(py));
        });
    }
}
