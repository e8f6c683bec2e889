//! Provides the Python class of a hold, which stops the worker threads of a queue until the hold is released.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::ReadAheadQueue;
use crate::gil_cell::GilCell;

/// A forked child does not release its copy of a hold, because the child may have inherited the queue's lock in locked
/// state.
#[pyclass(frozen, name = "ReadAheadHold", module = "torchdata._native")]
pub struct ReadAheadHold {
    queue: GilCell<Option<Py<ReadAheadQueue>>>,
}

impl ReadAheadHold {
    pub(super) fn on(queue: Py<ReadAheadQueue>) -> Self {
        queue.get().queue.hold();
        Self { queue: GilCell::new(Some(queue)) }
    }
}

#[pymethods]
impl ReadAheadHold {
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let queue = self.queue.with(py, |queue| queue.as_ref().map(|queue| queue.clone_ref(py)));
        queue.map_or(Ok(true), |queue| queue.get().wait_idle(py, seconds))
    }

    fn release(&self, py: Python<'_>) {
        let queue = self.queue.with(py, Option::take);
        if let Some(Ok(queue)) = queue.as_ref().map(|queue| queue.get().get()) {
            queue.release();
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: the garbage collector holds the GIL during this call, but provides no interpreter token.
        let py = unsafe { Python::assume_attached() };
        self.queue.with(py, |queue| visit.call(&*queue))
    }

    fn __clear__(&self, py: Python<'_>) {
        self.release(py);
    }
}

impl Drop for ReadAheadHold {
    fn drop(&mut self) {
        Python::attach(|py| self.release(py));
    }
}
