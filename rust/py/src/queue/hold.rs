//! Python class for a hold on the queue.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use torchdata_core::queue::ordered::Hold;

use super::{Entry, Queue, ReadAheadQueue};
use crate::gil_cell::GilCell;

/// A queue that a hold keeps alive.
struct Owner(Py<ReadAheadQueue>);

impl Deref for Owner {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.0.get().queue
    }
}

/// The hold of the engine, or None after it is released.
type Kept = Option<ManuallyDrop<Hold<Owner, Entry>>>;

/// A hold on a queue: no worker starts an item until the last hold is released.
///
/// A forked child has no workers, and may have inherited a held lock, so it does not release the hold.
#[pyclass(frozen, name = "ReadAheadHold", module = "torchdata._native")]
pub struct ReadAheadHold {
    hold: GilCell<Kept>,
}

impl ReadAheadHold {
    pub(super) fn on(queue: Py<ReadAheadQueue>) -> Self {
        Self { hold: GilCell::new(Some(ManuallyDrop::new(Hold::new(Owner(queue))))) }
    }

    fn queue(&self, py: Python<'_>) -> Option<Py<ReadAheadQueue>> {
        self.hold.with(py, |hold| hold.as_ref().map(|hold| hold.owner().0.clone_ref(py)))
    }
}

#[pymethods]
impl ReadAheadHold {
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        self.queue(py).map_or(Ok(true), |queue| queue.get().wait_still(py, seconds))
    }

    fn release(&self, py: Python<'_>) {
        let hold = self.hold.with(py, Option::take);
        if let Some(hold) = hold
            && hold.owner().0.get().get().is_ok()
        {
            drop(ManuallyDrop::into_inner(hold));
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: the garbage collector holds the GIL, but passes no token.
        let py = unsafe { Python::assume_attached() };
        self.hold.with(py, |hold| visit.call(hold.as_ref().map(|hold| &hold.owner().0)))
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
