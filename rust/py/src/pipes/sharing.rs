//! Iterates over the items of an indexable source that belong to one shard. The iterator skips the items of all other
//! shards without reading them.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::pipes::guard;
use crate::pipes::iterators::next_of;

/// Alternately yields `run` items of a source and skips `between` items, which belong to other shards.
#[pyclass(frozen, module = "torchdata._native")]
pub struct ShareIterator {
    source: Py<PyAny>,
    run: usize,
    between: usize,
    before: AtomicUsize,
    left: AtomicUsize,
}

#[pymethods]
impl ShareIterator {
    #[new]
    fn new(source: &Bound<'_, PyAny>, before: usize, left: usize, between: usize, run: usize) -> PyResult<Self> {
        if !source.get_type().is(guard::guard_type(source.py())?) {
            return Err(PyTypeError::new_err("the source of a share must be an iterator of a pipe"));
        }
        let (before, left) = (AtomicUsize::new(before), AtomicUsize::new(left));
        Ok(Self { source: source.clone().unbind(), run, between, before, left })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut left = self.left.load(Relaxed);
        let mut before = self.before.load(Relaxed);
        if left == 0 {
            (before, left) = (self.between, self.run);
        }
        if before > 0 {
            // SAFETY: the constructor has checked that the source is an instance of `IteratorGuard`.
            unsafe { guard::pass_over(self.source.bind(py), before) };
            self.before.store(0, Relaxed);
            self.left.store(left, Relaxed);
        }
        let item = next_of(self.source.bind(py))?;
        if item.is_some() {
            self.left.store(left - 1, Relaxed);
        }
        Ok(item)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.source)
    }
}
