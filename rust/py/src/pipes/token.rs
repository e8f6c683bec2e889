//! One valid iterator per pipe: the token that knows which, and how many items it yielded.
//!
//! Runs in whichever process and thread iterates the pipe. A pipe owns one [`IterationToken`]; each iterator made from
//! the pipe is an `IteratorGuard` (see `guard_type`) that remembers the number the token had then.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};

use pyo3::prelude::*;
use torchdata_core::stats::PipeRef;

use crate::pipes::clocking::Timed;

/// Where a board has a pipe.
pub struct Place {
    pub pipe: PipeRef,
    /// Whether it is the last one of its process, and of the loader.
    pub root: bool,
    pub main: bool,
    /// Where it was counted before.
    _before: Option<Box<Place>>,
}

impl Place {
    /// Counts the time of a call.
    pub fn sample(&self, timed: &Timed) {
        if let Some((own, weight)) = timed.own {
            self.pipe.record().sample(own, own.saturating_mul(weight).min(timed.passed.max(own)), weight);
        }
    }
}

/// A pipe's knowledge of its current iteration. Never pickled or copied: a copy starts afresh.
///
/// The fields are atomics only to be shared without locks; the GIL orders every access.
#[pyclass(frozen, module = "torchdata._native")]
#[repr(C)]
pub struct IterationToken {
    /// Number of the valid iterator; 0 before the first one. Grows by one with each `begin`.
    current: AtomicU64,
    /// Items that the valid iterator has yielded, restored and skipped ones included: what states are made of.
    own: AtomicU64,
    /// Where a board has the pipe, and counts them once more for people to see: a `Place` in a box, or null. Another
    /// token may count there, too: that of the pipe whose place this one has taken in a loader.
    place: AtomicPtr<Place>,
    /// The same from the next `begin` on.
    pending: AtomicPtr<Place>,
    /// Whether the valid iterator has ended.
    finished: AtomicBool,
    /// Whether the next `begin` continues from loaded state instead of resetting the pipe.
    armed: AtomicBool,
}

impl IterationToken {
    /// Whether the iterator `id` is the valid one.
    #[inline]
    pub fn is_current(&self, id: u64) -> bool {
        self.current.load(Relaxed) == id
    }

    /// Where a board counts items of the iterator that has just begun, or null. Valid as long as the token.
    pub fn counter(&self) -> *const AtomicU64 {
        self.place().map_or(ptr::null(), |place| &raw const place.pipe.record().yielded)
    }

    /// Counts items.
    #[inline]
    pub fn count(&self, items: u64) {
        self.own.store(self.own.load(Relaxed) + items, Relaxed);
    }

    /// Where a board has the pipe, if one has. Not to be kept over a call into Python, which may bind the token anew.
    #[inline]
    pub fn place(&self) -> Option<&Place> {
        // SAFETY: null, or a box that lives as long as the token.
        unsafe { self.place.load(Relaxed).as_ref() }
    }

    /// Counts on a board from the next iteration on. `root`: it is the last pipe of its process; `main`: of the loader.
    pub fn bind(&self, pipe: PipeRef, root: bool, main: bool) {
        let is_same =
            |place: &Place| ptr::eq(place.pipe.record(), pipe.record()) && (place.root, place.main) == (root, main);
        let pending = self.pending.load(Relaxed);
        // SAFETY: null, or a box that is freed here and in `activate` alone, with the GIL held.
        match unsafe { pending.as_ref() } {
            None if self.place().is_some_and(is_same) => return,
            Some(place) if is_same(place) => return,
            _ => {}
        }
        let place = Box::into_raw(Box::new(Place { pipe, root, main, _before: None }));
        let old = self.pending.swap(place, Relaxed);
        // SAFETY: as above.
        drop((!old.is_null()).then(|| unsafe { Box::from_raw(old) }));
    }

    /// Lets the place count that the token was bound to. The one before lives on, as a guard that is in the middle of a
    /// call may count there once more.
    pub fn activate(&self) {
        let pending = self.pending.swap(ptr::null_mut(), Relaxed);
        if pending.is_null() {
            return;
        }
        // SAFETY: made by `into_raw` in `bind`, and taken out just now.
        let mut place = unsafe { Box::from_raw(pending) };
        let yielded = self.yielded();
        place.pipe.record().restart(yielded, true);
        let old = self.place.load(Relaxed);
        // SAFETY: likewise made by `into_raw`, below, and put into the box that takes its place.
        place._before = (!old.is_null()).then(|| unsafe { Box::from_raw(old) });
        self.place.store(Box::into_raw(place), Relaxed);
    }

    /// Sets the count of the valid iterator. On a board, what others have yielded stays counted.
    fn restart(&self, yielded: u64) {
        self.own.store(yielded, Relaxed);
        if let Some(place) = self.place() {
            place.pipe.record().restart(yielded, true);
        }
    }

    /// Notes that the valid iterator has ended.
    pub fn finish(&self) {
        self.finished.store(true, Relaxed);
        if let Some(place) = self.place().filter(|place| place.root && place.main) {
            place.pipe.page().end_span();
        }
    }
}

impl Drop for IterationToken {
    fn drop(&mut self) {
        for place in [*self.place.get_mut(), *self.pending.get_mut()] {
            // SAFETY: made by `into_raw`; nobody refers to the token any more.
            drop((!place.is_null()).then(|| unsafe { Box::from_raw(place) }));
        }
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
            pending: AtomicPtr::new(ptr::null_mut()),
            finished: AtomicBool::new(false),
            armed: AtomicBool::new(false),
        }
    }

    /// Starts an iteration, which invalidates every older iterator.
    ///
    /// Returns (iterator id, whether loaded state is to be continued).
    fn begin(&self) -> (u64, bool) {
        self.activate();
        let id = self.current.fetch_add(1, Relaxed) + 1;
        let resumed = self.armed.swap(false, Relaxed);
        if !resumed {
            self.restart(0);
        }
        self.finished.store(false, Relaxed);
        (id, resumed)
    }

    /// Invalidates every iterator made so far without starting a new iteration.
    fn invalidate(&self) {
        self.current.fetch_add(1, Relaxed);
    }

    /// Makes the next iteration continue after `yielded` items instead of resetting the pipe.
    fn arm(&self, yielded: u64) {
        self.armed.store(true, Relaxed);
        self.restart(yielded);
    }

    /// Forgets loaded state: the next iteration starts anew.
    fn disarm(&self) {
        self.armed.store(false, Relaxed);
    }

    /// Whether a board takes the time of this pipe, now or from the next iteration on.
    #[getter]
    fn is_timed(&self) -> bool {
        // SAFETY: as in `bind`.
        let pending = unsafe { self.pending.load(Relaxed).as_ref() };
        pending.or_else(|| self.place()).is_some_and(|place| place.pipe.page().is_full())
    }

    /// Counts an item that was skipped because it raised an exception of this kind, for people to see.
    fn count_skipped(&self, kind: &str) {
        if let Some(place) = self.place() {
            place.pipe.record().skip(kind);
        }
    }

    /// Counts a request over a network that is sent again after a fault, for people to see.
    fn count_retry(&self) {
        if let Some(place) = self.place() {
            place.pipe.record().retries.fetch_add(1, Relaxed);
        }
    }

    /// Number of the valid iterator; 0 if the pipe was never iterated.
    #[getter]
    fn current(&self) -> u64 {
        self.current.load(Relaxed)
    }

    /// Items yielded by the valid iterator.
    #[getter]
    pub fn yielded(&self) -> u64 {
        self.own.load(Relaxed)
    }

    /// Whether loaded state waits to be continued.
    #[getter]
    fn armed(&self) -> bool {
        self.armed.load(Relaxed)
    }

    /// Whether the valid iterator has ended.
    #[getter]
    fn finished(&self) -> bool {
        self.finished.load(Relaxed)
    }

    /// A copy or an unpickled token is a fresh one.
    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, ())> {
        Ok((slf.get_type().into_any().unbind(), ()))
    }
}
