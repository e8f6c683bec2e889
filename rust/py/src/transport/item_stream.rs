//! What Python iterates: the items of one epoch, or of one pass of a worker's share.
//!
//! Runs in the thread that asks for the next item. The collector, to which it belongs, says whether the epoch is still read.

use std::sync::atomic::AtomicU64;

use pyo3::exceptions::PyStopIteration;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::collector::Collector;

/// An iterator over the items that a `Collector` receives in one epoch; of a worker's share, in one pass.
#[pyclass(frozen, module = "torchdata._native")]
pub struct ItemStream {
    collector: Py<Collector>,
    epoch: u32,
    /// The pass; 0 before the first item was asked for.
    pass: AtomicU64,
}

impl ItemStream {
    pub(super) fn new(collector: Py<Collector>, epoch: u32, pass: u64) -> Self {
        Self { collector, epoch, pass: AtomicU64::new(pass) }
    }
}

#[pymethods]
impl ItemStream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.collector.get().next(py, self.epoch, &self.pass)
    }

    /// Appends the next item to a list. Where a signal handler raises, it lies there, or was not taken.
    fn next_into(&self, hand: &Bound<'_, PyList>) -> PyResult<()> {
        let item = self.collector.get().next(hand.py(), self.epoch, &self.pass)?;
        hand.append(item.ok_or_else(|| PyStopIteration::new_err(()))?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.collector)
    }
}

impl Drop for ItemStream {
    fn drop(&mut self) {
        self.collector.get().leave(self.epoch, *self.pass.get_mut());
    }
}
