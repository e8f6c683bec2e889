//! Iterates over a sequence by index, and can skip items.
//!
//! The iterator runs in each process and thread that iterates the pipes. The GIL orders all accesses.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyRange, PyRangeMethods, PyTuple};

use crate::gil_cell::GilNumber;

/// How to access the items of a sequence.
enum SequenceKind {
    Range { start: i64, step: i64 },
    List,
    Tuple,
    Other,
}

fn small_range(sequence: &Bound<'_, PyAny>, length: usize) -> Option<SequenceKind> {
    let range = sequence.cast_exact::<PyRange>().ok()?;
    let (start, step) = (range.start().ok()? as i64, range.step().ok()? as i64);
    start.checked_add(step.checked_mul(i64::try_from(length).ok()?)?)?;
    Some(SequenceKind::Range { start, step })
}

/// Iterates over a sequence like `iter`, and can skip items.
#[pyclass(frozen, module = "torchdata._native")]
pub struct SequenceIterator {
    sequence: Py<PyAny>,
    kind: SequenceKind,
    /// The length of an immutable sequence. For lists, the length is read each time.
    length: usize,
    /// The index of the next item, or `usize::MAX` after the end. A list that grows after the end yields no more items.
    position: AtomicUsize,
}

impl SequenceIterator {
    fn length(&self, py: Python<'_>) -> usize {
        match self.kind {
            // SAFETY: this kind means that the sequence is a list.
            SequenceKind::List => unsafe { self.sequence.bind(py).cast_unchecked::<PyList>() }.len(),
            _ => self.length,
        }
    }

    /// Skips up to `most` items, and returns how many items were skipped.
    pub fn pass_over(&self, py: Python<'_>, most: usize) -> usize {
        loop {
            let position = self.position.load();
            let passed = self.length(py).saturating_sub(position as usize).min(most);
            if self.position.replace(position, position + passed as u64) {
                return passed;
            }
        }
    }
}

#[pymethods]
impl SequenceIterator {
    /// Creates an iterator over `sequence` that starts with item number `position`.
    #[new]
    fn new(sequence: &Bound<'_, PyAny>, position: usize) -> PyResult<Self> {
        let length = sequence.len()?;
        let kind = if let Some(range) = small_range(sequence, length) {
            range
        } else if sequence.is_exact_instance_of::<PyList>() {
            SequenceKind::List
        } else if sequence.is_exact_instance_of::<PyTuple>() {
            SequenceKind::Tuple
        } else {
            SequenceKind::Other
        };
        Ok(Self { sequence: sequence.clone().unbind(), kind, length, position: GilNumber::new(position as u64) })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        loop {
            let position = self.position.load();
            if position as usize >= self.length(py) {
                self.position.store(u64::MAX);
                return Ok(None);
            }
            let item = self.item(py, position as usize)?;
            // Otherwise, another thread has taken this item meanwhile.
            if self.position.replace(position, position + 1) {
                return Ok(Some(item));
            }
        }
        let sequence = self.sequence.bind(py);
        let item = match self.kind {
            SequenceKind::Range { start, step } => (start + step * position as i64).into_pyobject(py)?.into_any(),
            // SAFETY: this kind means that the sequence is a list.
            SequenceKind::List => unsafe { sequence.cast_unchecked::<PyList>() }.get_item(position)?,
            // SAFETY: this kind means that the sequence is a tuple.
            SequenceKind::Tuple => unsafe { sequence.cast_unchecked::<PyTuple>() }.get_item(position)?,
            // SAFETY: the object exists. The call returns a new reference, or NULL with an exception set.
            SequenceKind::Other => unsafe {
                let item = ffi::PySequence_GetItem(sequence.as_ptr(), position as ffi::Py_ssize_t);
                Bound::from_owned_ptr_or_err(py, item)?
            },
        };
        self.position.store(position + 1, Relaxed);
        Ok(Some(item))
    }

    /// Needs no `__clear__`, for the same reason as `FilterIterator`.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sequence)
    }
}
