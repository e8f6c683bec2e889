//! Implements the token of a pipe, which records the pipe's valid iterator and how many items this iterator has
//! yielded.

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

use pyo3::prelude::*;
use torchdata_core::stats::PipeRef;

use crate::gil_cell::GilCell;
use crate::pipes::clocking::Timed;

pub struct BoardSlot {
    pub pipe: PipeRef,
    /// `root` is true for the last pipe in a process's graph. `main` is true for the last pipe of the whole loader.
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

/// The state of a pipe's current iteration. A token is never pickled or copied, so the iteration of a copied pipe
/// starts from the beginning.
#[pyclass(frozen, module = "torchdata._native")]
#[derive(Default)]
#[repr(C)]
pub struct IterationToken {
    current: AtomicU64,
    /// The number of items that the newest iterator has yielded or skipped, including items before the epoch was
    /// resumed.
    own: AtomicU64,
    slot: AtomicPtr<BoardSlot>,
    /// The statistics record that the next call of `begin` activates.
    pending: GilCell<Option<Box<BoardSlot>>>,
    finished: AtomicBool,
    /// Whether the next `begin` resumes from a loaded state instead of resetting the pipe.
    armed: AtomicBool,
}

impl IterationToken {
    pub fn is_current(&self, id: u64) -> bool {
        self.current.load(Relaxed) == id
    }

    /// Returns the pipe's item counter in shared memory, or null. The pointer is valid as long as the token exists.
    pub fn counter(&self) -> *const AtomicU64 {
        self.slot().map_or(ptr::null(), |slot| &raw const slot.pipe.record().yielded)
    }

    pub fn count(&self, items: u64) {
        self.own.store(self.own.load(Relaxed) + items, Relaxed);
    }

    /// Returns the statistics record of the pipe. Callers must not keep the result while Python code runs, because
    /// Python code may replace the record.
    pub fn slot(&self) -> Option<&BoardSlot> {
        // SAFETY: the pointer is null, or points to a box that exists as long as the token.
        // SYNC(slot): pairs with the store in `activate`.
        unsafe { self.slot.load(Acquire).as_ref() }
    }

    /// From the next iteration on, items are counted in the statistics record of `pipe`.
    pub fn bind(&self, py: Python<'_>, pipe: PipeRef, root: bool, main: bool) {
        self.pending.with(py, |pending| {
            let is_same =
                |slot: &BoardSlot| ptr::eq(slot.pipe.record(), pipe.record()) && (slot.root, slot.main) == (root, main);
            if !pending.as_deref().or_else(|| self.slot()).is_some_and(is_same) {
                *pending = Some(Box::new(BoardSlot { pipe, root, main, _before: None }));
            }
        });
    }

    /// From now on, counts items in the statistics record that `bind` has set. The previous record stays allocated,
    /// because a call in another thread may still use the previous record.
    pub fn activate(&self, py: Python<'_>) {
        self.pending.with(py, |pending| {
            let Some(mut slot) = pending.take() else { return };
            slot.pipe.record().restart(self.yielded());
            let old = self.slot.load(Relaxed);
            // SAFETY: an earlier call of this method created the pointer with `into_raw`. The new record owns the old
            // record, so the old record is freed when this `IterationToken` is dropped.
            slot._before = (!old.is_null()).then(|| unsafe { Box::from_raw(old) });
            // SYNC(slot): pairs with the load in `slot`.
            self.slot.store(Box::into_raw(slot), Release);
        });
    }

    /// The totals in the statistics still include the items of earlier iterators.
    fn restart(&self, yielded: u64) {
        self.own.store(yielded, Relaxed);
        if let Some(slot) = self.slot() {
            slot.pipe.record().restart(yielded);
        }
    }

    pub fn finish(&self) {
        self.finished.store(true, Relaxed);
        if let Some(slot) = self.slot().filter(|slot| slot.root && slot.main) {
            slot.pipe.page.end_span();
        }
    }
}

impl Drop for IterationToken {
    fn drop(&mut self) {
        let slot = *self.slot.get_mut();
        // SAFETY: `activate` created the pointer with `into_raw`, and no references to the token remain.
        drop((!slot.is_null()).then(|| unsafe { Box::from_raw(slot) }));
    }
}

#[pymethods]
impl IterationToken {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Begins an iteration. Returns the number of the iteration, and whether the iteration resumes from a loaded state.
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

    fn disarm(&self) {
        self.armed.store(false, Relaxed);
    }

    #[getter]
    fn is_timed(&self, py: Python<'_>) -> bool {
        self.pending
            .with(py, |pending| pending.as_deref().or_else(|| self.slot()).is_some_and(|slot| slot.pipe.page.is_full()))
    }

    fn count_skipped(&self, kind: &str) {
        if let Some(slot) = self.slot() {
            slot.pipe.record().skip(kind);
        }
    }

    fn count_retry(&self) {
        if let Some(slot) = self.slot() {
            slot.pipe.record().retries.fetch_add(1, Relaxed);
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

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, ())> {
        Ok((slf.get_type().into_any().unbind(), ()))
    }
}
