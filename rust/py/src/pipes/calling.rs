//! Measures the user functions of indexed datasets separately from the pipe that calls these functions.

use std::sync::atomic::Ordering::Relaxed;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::pipes::clocking;
use crate::pipes::iterators::call;
use crate::pipes::token::IterationToken;

/// A callable that calls a function with one argument, and measures the call in the statistics of a pipe.
#[pyclass(frozen, module = "torchdata._native")]
pub struct TimedCall {
    token: Py<IterationToken>,
    function: Py<PyAny>,
    counts: bool,
}

#[pymethods]
impl TimedCall {
    #[new]
    fn new(token: Bound<'_, IterationToken>, function: Py<PyAny>, counts: bool) -> Self {
        token.get().activate(token.py());
        Self { token: token.unbind(), function, counts }
    }

    fn __call__<'py>(&self, py: Python<'py>, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let token = self.token.get();
        let Some(before) = token.slot().map(|slot| {
            let (current, mark) = slot.pipe.running();
            let before = current.load(Relaxed);
            current.store(mark, Relaxed);
            before
        }) else {
            return call(self.function.bind(py), argument);
        };
        let (result, _, timed) = clocking::timed(|| call(self.function.bind(py), argument));
        if let Some(slot) = token.slot() {
            let record = slot.pipe.record();
            slot.pipe.running().0.store(before, Relaxed);
            record.yielded.store(record.yielded.load(Relaxed) + u64::from(self.counts && result.is_ok()), Relaxed);
            if let Some(timed) = timed {
                slot.sample(&timed);
            }
        }
        result
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.token)?;
        visit.call(&self.function)
    }
}
