//! Shares of what is read by index: items of other shares are passed over, and never made.
//!
//! A source that is asked for it iterates by a `SequenceIterator` (`sequence.rs`), which passes over items by a mere addition. A
//! [`ShareIterator`] reads it through the source's guard, which counts what is passed over as if it had been yielded. So
//! places, states and counts are those of a reader that takes every item and drops the others', and only the time
//! differs: it does not grow with the number of shares. Run in whichever process and thread iterates the pipes; the GIL
//! orders every access.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::pipes::guard;
use crate::pipes::iterators::next_of;

/// Yields runs of a source's items, and passes over what lies between them.
#[pyclass(frozen, module = "torchdata._native")]
pub struct ShareIterator {
    /// A guard whose iterator is a `SequenceIterator`.
    source: Py<PyAny>,
    run: usize,
    between: usize,
    /// Items to pass over before the next one, and what is left of the run behind them.
    before: AtomicUsize,
    left: AtomicUsize,
}

#[pymethods]
impl ShareIterator {
    /// Passes over `before` items of `source`, the guard of a `SequenceIterator`, yields `left`, and from then on passes
    /// over `between` and yields `run`, in turn. All but `before` and `between` are positive.
    #[new]
    fn new(source: &Bound<'_, PyAny>, before: usize, left: usize, between: usize, run: usize) -> PyResult<Self> {
        if !source.get_type().is(guard::guard_type(source.py())?) {
            return Err(PyTypeError::new_err("the source of a share is no iterator of a pipe"));
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
            // SAFETY: the constructor has seen that it is a guard.
            unsafe { guard::pass_over(self.source.bind(py), before) };
            self.before.store(0, Relaxed);
            self.left.store(left, Relaxed);
        }
        let item = next_of(py, &self.source)?;
        if item.is_some() {
            self.left.store(left - 1, Relaxed);
        }
        Ok(item)
    }

    /// There is nothing to clear, as in `FilterIterator`.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.source)
    }
}
