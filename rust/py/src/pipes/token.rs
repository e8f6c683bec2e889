//! The token of a pipe records which iterator of the pipe is valid, and how many items that iterator has yielded.
//!
//! A pipe owns one [`IterationToken`], which all its threads use. Each iterator of the pipe is an `IteratorGuard` (see
//! `guard_type`), which stores the number that the token had when the iterator was created.

use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use pyo3::prelude::*;
use torchdata_core::stats::PipeRef;

use crate::gil_cell::GilCell;
use crate::pipes::clocking::Timed;

/// The record of a pipe on a board of counters.
pub struct BoardSlot {
    pub pipe: PipeRef,
    /// Whether the pipe is the last pipe of its process. `main` is true if this pipe is the last pipe of the loader.
    pub root: bool,
    pub main: bool,
    _before: Option<Box<BoardSlot>>,
}

impl BoardSlot {
    pub fn sample(&self, timed: &Timed) {
        if let Some((own, weight)) = timed.own {
            self.pipe.record().sample(own, own.saturating_mul(weight).min(timed.passed.max(own)), weight);
        }
    }
}

/// The state of a pipe's current iteration, which is never pickled or copied, so that a copy of the pipe starts from
/// the beginning. Threads share the fields.
#[pyclass(frozen, module = "torchdata._native")]
#[repr(C)]
pub struct IterationToken {
    /// The number of the valid iterator, or 0 before the first iterator. Each call of `begin` increments the number.
    current: AtomicU64,
    /// The number of items that the valid iterator has yielded or skipped, even if it has resumed after some of these
    /// items. States contain this number.
    own: AtomicU64,
    /// The record of the pipe on a board of counters that are displayed: a pointer to a boxed `BoardSlot`, or null. A
    /// pipe and the copy by which a loader has replaced this pipe may share a record.
    place: AtomicPtr<BoardSlot>,
    /// The record that the next `begin` activates. Only changed together with `place`, in one call of `with`.
    pending: GilCell<Option<Box<BoardSlot>>>,
    finished: AtomicBool,
    /// Whether the next `begin` resumes from a loaded state instead of resetting the pipe.
    armed: AtomicBool,
}

impl IterationToken {
    #[inline]
    pub fn is_current(&self, id: u64) -> bool {
        self.current.load(Relaxed) == id
    }

    /// Returns the board's item counter for the current iterator, or null. The pointer is valid as long as the token.
    pub fn counter(&self) -> *const AtomicU64 {
        self.place().map_or(ptr::null(), |place| &raw const place.pipe.record().yielded)
    }

    #[inline]
    pub fn count(&self, items: u64) {
        self.own.store(self.own.load(Relaxed) + items, Relaxed);
    }

    /// Returns the record of the pipe on a board of counters, or None. Do not keep the record while Python code runs,
    /// because Python code may bind the token to another record.
    #[inline]
    pub fn place(&self) -> Option<&BoardSlot> {
        // SAFETY: the pointer is null, or points to a box that exists as long as the token.
        // SYNC(slot): pairs with the store in `activate`.
        unsafe { self.place.load(Acquire).as_ref() }
    }

    /// Starts counting on a board with the next iteration. `root` marks the last pipe of a process, and `main` the last
    /// pipe of the loader.
    pub fn bind(&self, py: Python<'_>, pipe: PipeRef, root: bool, main: bool) {
        self.pending.with(py, |pending| {
            let is_same = |place: &BoardSlot| {
                ptr::eq(place.pipe.record(), pipe.record()) && (place.root, place.main) == (root, main)
            };
            if !pending.as_deref().or_else(|| self.place()).is_some_and(is_same) {
                *pending = Some(Box::new(BoardSlot { pipe, root, main, _before: None }));
            }
        });
    }

    /// Activates the pending record. The previous record stays allocated, because a running call may still use it.
    pub fn activate(&self, py: Python<'_>) {
        self.pending.with(py, |pending| {
            let Some(mut place) = pending.take() else { return };
            place.pipe.record().restart(self.yielded(), true);
            let old = self.place.load(Relaxed);
            // SAFETY: an earlier call of this method created the pointer with `into_raw`. The new record keeps the old
            // record, and frees it later.
            place._before = (!old.is_null()).then(|| unsafe { Box::from_raw(old) });
            // SYNC(slot): pairs with the load in `place`.
            self.place.store(Box::into_raw(place), Release);
        });
    }

    /// Sets the count of the valid iterator. The count on the board still includes the items of earlier iterators.
    fn restart(&self, yielded: u64) {
        self.own.store(yielded, Relaxed);
        if let Some(place) = self.place() {
            place.pipe.record().restart(yielded, true);
        }
    }

    pub fn finish(&self) {
        self.finished.store(true, Relaxed);
        if let Some(place) = self.place().filter(|place| place.root && place.main) {
            place.pipe.page().end_span();
        }
    }
}

impl Drop for IterationToken {
    fn drop(&mut self) {
        let place = *self.place.get_mut();
        // SAFETY: the pointer was created with `into_raw`, and no references to the token remain.
        drop((!place.is_null()).then(|| unsafe { Box::from_raw(place) }));
    }
}

#[pymethods]
impl IterationToken {
    #[new]
    fn new() -> Self {
        Self {
            current: AtomicU64::new(0),
            own: AtomicU64::new(0),
            place: AtomicPtr::new(ptr::null_mut()),
            pending: GilCell::new(None),
            finished: AtomicBool::new(false),
            armed: AtomicBool::new(false),
        }
    }

    /// Starts an iteration, and makes older iterators invalid. Returns (id, whether to resume from a loaded state).
    fn begin(&self, py: Python<'_>) -> (u64, bool) {
        self.activate(py);
        let id = self.current.fetch_add(1, Relaxed) + 1;
        let resumed = self.armed.swap(false, Relaxed);
        if !resumed {
            self.restart(0);
        }
        self.finished.store(false, Relaxed);
        (id, resumed)
    }

    fn invalidate(&self) {
        self.current.fetch_add(1, Relaxed);
    }

    /// Makes the next iteration resume after `yielded` items instead of resetting the pipe.
    fn arm(&self, yielded: u64) {
        self.armed.store(true, Relaxed);
        self.restart(yielded);
    }

    /// Discards a loaded state, so that the next iteration starts from the beginning.
    fn disarm(&self) {
        self.armed.store(false, Relaxed);
    }

    /// Whether the time of each pipe is measured on the board on which this pipe counts, now or after the next `begin`.
    #[getter]
    fn is_timed(&self, py: Python<'_>) -> bool {
        self.pending.with(py, |pending| {
            pending.as_deref().or_else(|| self.place()).is_some_and(|place| place.pipe.page().is_full())
        })
    }

    /// Adds an item that was skipped because of an exception of type `kind` to the displayed counts.
    fn count_skipped(&self, kind: &str) {
        if let Some(place) = self.place() {
            place.pipe.record().skip(kind);
        }
    }

    /// Counts a network request that is repeated after an error. The count is only displayed.
    fn count_retry(&self) {
        if let Some(place) = self.place() {
            place.pipe.record().retries.fetch_add(1, Relaxed);
        }
    }

    #[getter]
    fn current(&self) -> u64 {
        self.current.load(Relaxed)
    }

    #[getter]
    pub fn yielded(&self) -> u64 {
        self.own.load(Relaxed)
    }

    #[getter]
    fn armed(&self) -> bool {
        self.armed.load(Relaxed)
    }

    #[getter]
    fn finished(&self) -> bool {
        self.finished.load(Relaxed)
    }

    /// Makes a copied or unpickled token a new token.
    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, ())> {
        Ok((slf.get_type().into_any().unbind(), ()))
    }
}
