//! Shares of what is read by index: items of other shares are passed over, and never made.
//!
//! A source that is asked for it iterates by a [`SequenceIterator`], which passes over items by a mere addition. A
//! [`ShareIterator`] reads it through the source's guard, which counts what is passed over as if it had been yielded. So
//! places, states and counts are those of a reader that takes every item and drops the others', and only the time
//! differs: it does not grow with the number of shares. Run in whichever process and thread iterates the pipes; the GIL
//! orders every access.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyRange, PyRangeMethods, PyTuple};

use crate::pipes::guard;
use crate::pipes::iterators::next_of;

/// How the items of a sequence are had.
enum Kind {
    Range { start: i64, step: i64 },
    List,
    Tuple,
    Other,
}

/// A range all of whose numbers are of 64 bits.
fn small_range(sequence: &Bound<'_, PyAny>, length: usize) -> Option<Kind> {
    let range = sequence.cast_exact::<PyRange>().ok()?;
    let (start, step) = (range.start().ok()? as i64, range.step().ok()? as i64);
    start.checked_add(step.checked_mul(i64::try_from(length).ok()?)?)?;
    Some(Kind::Range { start, step })
}

/// Iterates over a sequence as `iter` does, and can pass over items.
#[pyclass(frozen, module = "torchdata._native")]
pub struct SequenceIterator {
    sequence: Py<PyAny>,
    kind: Kind,
    /// The length of a sequence that does not change; lists are asked each time.
    length: usize,
    /// The number of the next item; `usize::MAX` behind the end, for a list may grow.
    position: AtomicUsize,
}

impl SequenceIterator {
    fn length(&self, py: Python<'_>) -> usize {
        match self.kind {
            // SAFETY: the kind says that it is a list.
            Kind::List => unsafe { self.sequence.bind(py).cast_unchecked::<PyList>() }.len(),
            _ => self.length,
        }
    }

    /// Passes over items, `most` at most; returns how many there were.
    pub fn pass_over(&self, py: Python<'_>, most: usize) -> usize {
        let position = self.position.load(Relaxed);
        let passed = self.length(py).saturating_sub(position).min(most);
        self.position.store(position + passed, Relaxed);
        passed
    }
}

#[pymethods]
impl SequenceIterator {
    /// An iterator over `sequence` that yields its item number `position` first.
    #[new]
    fn new(sequence: &Bound<'_, PyAny>, position: usize) -> PyResult<Self> {
        let length = sequence.len()?;
        let kind = if let Some(range) = small_range(sequence, length) {
            range
        } else if sequence.is_exact_instance_of::<PyList>() {
            Kind::List
        } else if sequence.is_exact_instance_of::<PyTuple>() {
            Kind::Tuple
        } else {
            Kind::Other
        };
        Ok(Self { sequence: sequence.clone().unbind(), kind, length, position: AtomicUsize::new(position) })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let position = self.position.load(Relaxed);
        if position >= self.length(py) {
            self.position.store(usize::MAX, Relaxed);
            return Ok(None);
        }
        let sequence = self.sequence.bind(py);
        let item = match self.kind {
            Kind::Range { start, step } => (start + step * position as i64).into_pyobject(py)?.into_any(),
            // SAFETY: the kind says that it is a list, or a tuple.
            Kind::List => unsafe { sequence.cast_unchecked::<PyList>() }.get_item(position)?,
            Kind::Tuple => unsafe { sequence.cast_unchecked::<PyTuple>() }.get_item(position)?,
            // SAFETY: a live object; the result is a new reference, or NULL with an exception set.
            Kind::Other => unsafe {
                let item = ffi::PySequence_GetItem(sequence.as_ptr(), position as ffi::Py_ssize_t);
                Bound::from_owned_ptr_or_err(py, item)?
            },
        };
        self.position.store(position + 1, Relaxed);
        Ok(Some(item))
    }

    /// There is nothing to clear, as in `FilterIterator`.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sequence)
    }
}

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
