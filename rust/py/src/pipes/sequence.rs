//! Iterates over a sequence by index, and can skip items without reading them.

use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyRange, PyRangeMethods};

use crate::gil_cell::GilNumber;

enum SequenceKind {
    Range { start: i64, step: i64 },
    List,
    Other,
}

fn small_range(sequence: &Bound<'_, PyAny>, length: usize) -> Option<SequenceKind> {
    let range = sequence.cast_exact::<PyRange>().ok()?;
    let (start, step) = (range.start().ok()? as i64, range.step().ok()? as i64);
    start.checked_add(step.checked_mul(i64::try_from(length).ok()?)?)?;
    Some(SequenceKind::Range { start, step })
}

#[pyclass(frozen, module = "torchdata._native")]
pub struct SequenceIterator {
    sequence: Py<PyAny>,
    kind: SequenceKind,
    /// The number of items. The field is unused for a list, because a list can change its length.
    length: usize,
    /// The index of the next item, or `u64::MAX` after the end. Items that are appended to a list after the end of the
    /// iteration are ignored.
    position: GilNumber,
}

impl SequenceIterator {
    fn length(&self, py: Python<'_>) -> usize {
        match self.kind {
            // SAFETY: `SequenceKind::List` means that the sequence is a list.
            SequenceKind::List => unsafe { self.sequence.bind(py).cast_unchecked::<PyList>() }.len(),
            _ => self.length,
        }
    }

    fn item<'py>(&self, py: Python<'py>, position: usize) -> PyResult<Bound<'py, PyAny>> {
        let sequence = self.sequence.bind(py);
        match self.kind {
            SequenceKind::Range { start, step } => Ok((start + step * position as i64).into_pyobject(py)?.into_any()),
            // SAFETY: `SequenceKind::List` means that the sequence is a list.
            SequenceKind::List => unsafe { sequence.cast_unchecked::<PyList>() }.get_item(position),
            // SAFETY: the object exists. PySequence_GetItem returns a new reference, or NULL with an exception set.
            SequenceKind::Other => unsafe {
                let item = ffi::PySequence_GetItem(sequence.as_ptr(), position as ffi::Py_ssize_t);
                Bound::from_owned_ptr_or_err(py, item)
            },
        }
    }

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
    #[new]
    fn new(sequence: &Bound<'_, PyAny>, position: usize) -> PyResult<Self> {
        let length = sequence.len()?;
        let kind = if let Some(range) = small_range(sequence, length) {
            range
        } else if sequence.is_exact_instance_of::<PyList>() {
            SequenceKind::List
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
            // If another thread has already returned the item at `position`, the loop reads the next item.
            if self.position.replace(position, position + 1) {
                return Ok(Some(item));
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sequence)
    }
}
