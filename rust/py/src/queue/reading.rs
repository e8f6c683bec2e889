//! Reads the items of a source for the threads that read ahead, and saves the source's state from time to time.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::PyNotImplementedError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use torchdata_core::queue::ordered::Slot;
use torchdata_core::queue::position::Index;

use super::window::is_small;
use super::{Entry, ReadAheadQueue};
use crate::gil_cell::GilCell;

type Taken = (Py<PyAny>, Index, Option<Py<PyAny>>);

/// Reads the source of a queue. Only the thread that has reserved the source may use the fields that are not atomic.
#[pyclass(frozen, module = "torchdata._native")]
pub struct SourceReader {
    #[pyo3(get)]
    advance: Py<PyAny>,
    state_of: Py<PyAny>,
    /// A function that converts a NotImplementedError of `state_of` to a placeholder for the state.
    unsaved: Py<PyAny>,
    /// The number of items between two saved states of the source, or 0 if no states are saved.
    frequency: u64,
    /// An earlier run has already delivered the first `dropped` items and the items with the numbers in `ahead`, so
    /// this run drops them.
    dropped: Index,
    ahead: HashSet<Index>,
    index: AtomicU64,
    ended: AtomicBool,
    /// An exception of `state_of` after the previous item, which is raised instead of the next item.
    state_error: GilCell<Option<Py<PyAny>>>,
}

impl SourceReader {
    /// If this method raises an exception, `index` has not changed.
    fn next(&self, py: Python<'_>) -> PyResult<Taken> {
        self.ended.store(false, Relaxed);
        if let Some(state_error) = self.state_error.with(py, Option::take) {
            return Err(PyErr::from_value(state_error.into_bound(py)));
        }
        let item = self.advance.call0(py)?;
        let index = self.index.fetch_add(1, Relaxed);
        let is_due = self.frequency > 0 && (index + 1).is_multiple_of(self.frequency);
        Ok((item, index, if is_due { self.state(py)? } else { None }))
    }

    fn state(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.state_of.call0(py) {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.is_instance_of::<PyNotImplementedError>(py) => {
                self.unsaved.call1(py, (error.into_value(py),)).map(Some)
            }
            Err(error) => {
                let state_error = error.into_value(py).into_any();
                self.state_error.with(py, |cell| cell.replace(state_error));
                Ok(None)
            }
        }
    }

    fn is_dropped(&self, index: Index) -> bool {
        index < self.dropped || self.ahead.contains(&index)
    }
}

#[pymethods]
impl SourceReader {
    #[new]
    fn new(
        advance: Py<PyAny>,
        state_of: Py<PyAny>,
        unsaved: Py<PyAny>,
        frequency: u64,
        dropped: Index,
        ahead: HashSet<Index>,
    ) -> Self {
        let (index, ended, state_error) = (AtomicU64::new(0), AtomicBool::new(false), GilCell::new(None));
        Self { advance, state_of, unsaved, frequency, dropped, ahead, index, ended, state_error }
    }

    fn take(&self, py: Python<'_>, queue: &Bound<'_, ReadAheadQueue>, slot: Slot) -> PyResult<Option<Taken>> {
        let (item, index, mark) = self.next(py)?;
        if self.is_dropped(index) {
            queue.get().skip(py, slot, index, mark)?;
            return Ok(None);
        }
        Ok(Some((item, index, mark)))
    }

    /// Moves items from the source to the queue until the queue is closed or the source raises an error. After an
    /// error, returns the slot that was reserved for the next item, and the error.
    fn hand_over(&self, py: Python<'_>, queue: &Bound<'_, ReadAheadQueue>) -> PyResult<Option<(Slot, Py<PyAny>)>> {
        let queue = queue.get();
        let mut reserved = None;
        while let Some(slot) = reserved.take().map_or_else(|| queue.reserve(py), |slot| Ok(Some(slot)))? {
            match self.next(py) {
                Ok((_, index, mark)) if self.is_dropped(index) => queue.skip(py, slot, index, mark)?,
                Ok((item, index, mark)) => {
                    let is_small = is_small(item.bind(py));
                    let entry = Entry { index: Some(index), mark, is_small, ..Entry::new(item) };
                    reserved = queue.get()?.hand_over(slot, entry);
                }
                Err(error) => return Ok(Some((slot, error.into_value(py).into_any()))),
            }
        }
        queue.drop_if_closed(queue.get()?);
        Ok(None)
    }

    #[getter]
    fn index(&self) -> Index {
        self.index.load(Relaxed)
    }

    #[setter]
    fn set_index(&self, index: Index) {
        self.index.store(index, Relaxed);
    }

    #[getter]
    fn ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    #[setter]
    fn set_ended(&self, ended: bool) {
        self.ended.store(ended, Relaxed);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        [&self.advance, &self.state_of, &self.unsaved].into_iter().try_for_each(|it| visit.call(it))?;
        // SAFETY: the garbage collector holds the GIL during this call, but provides no interpreter token.
        let py = unsafe { Python::assume_attached() };
        self.state_error.with(py, |state_error| visit.call(&*state_error))
    }
}
