//! One valid iterator per pipe: the token that knows which, and how many items it yielded.
//!
//! Runs in whichever process and thread iterates the pipe. A pipe owns one [`IterationToken`]; each iterator made from
//! the pipe is an `IteratorGuard` (see `guard_type`) that remembers the number the token had then.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pyo3::prelude::*;

/// What a pipe knows of its current iteration. Never pickled or copied: a copy starts afresh.
///
/// The fields are atomics only to be shared without locks; the GIL orders every access.
#[pyclass(frozen, module = "torchdata._native")]
pub struct IterationToken {
    /// Number of the valid iterator; 0 before the first one. Grows by one with each `begin`.
    current: AtomicU64,
    /// Items that the valid iterator has yielded, restored and skipped ones included.
    yielded: AtomicU64,
    /// Whether the valid iterator has ended.
    finished: AtomicBool,
    /// Whether the next `begin` continues from loaded state instead of resetting the pipe.
    armed: AtomicBool,
    /// Items to drop after the next `begin`, for pipes that are replayed.
    replay: AtomicU64,
}

impl IterationToken {
    /// Whether the iterator `id` is the valid one.
    #[inline]
    pub fn is_current(&self, id: u64) -> bool {
        self.current.load(Relaxed) == id
    }

    /// Counts an item of the valid iterator.
    #[inline]
    pub fn count(&self) {
        self.yielded.store(self.yielded.load(Relaxed) + 1, Relaxed);
    }

    /// Notes that the valid iterator has ended.
    pub fn finish(&self) {
        self.finished.store(true, Relaxed);
    }
}

#[pymethods]
impl IterationToken {
    #[new]
    fn new() -> Self {
        Self {
            current: AtomicU64::new(0),
            yielded: AtomicU64::new(0),
            finished: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            replay: AtomicU64::new(0),
        }
    }

    /// Starts an iteration, which invalidates every older iterator.
    ///
    /// Returns (iterator id, whether loaded state is to be continued, items to drop by replay).
    fn begin(&self) -> (u64, bool, u64) {
        let id = self.current.fetch_add(1, Relaxed) + 1;
        let resumed = self.armed.swap(false, Relaxed);
        let replay = self.replay.swap(0, Relaxed);
        if !resumed {
            self.yielded.store(0, Relaxed);
        }
        self.finished.store(false, Relaxed);
        (id, resumed, replay)
    }

    /// Invalidates every iterator made so far without starting a new iteration.
    fn invalidate(&self) {
        self.current.fetch_add(1, Relaxed);
    }

    /// Makes the next iteration continue after `yielded` items instead of resetting the pipe.
    fn arm(&self, yielded: u64) {
        self.armed.store(true, Relaxed);
        self.replay.store(0, Relaxed);
        self.yielded.store(yielded, Relaxed);
    }

    /// Makes the next iteration start anew and drop its first `count` items.
    fn arm_replay(&self, count: u64) {
        self.armed.store(false, Relaxed);
        self.replay.store(count, Relaxed);
    }

    /// Forgets loaded state: the next iteration starts anew.
    fn disarm(&self) {
        self.armed.store(false, Relaxed);
        self.replay.store(0, Relaxed);
    }

    /// Number of the valid iterator; 0 where the pipe was never iterated.
    #[getter]
    fn current(&self) -> u64 {
        self.current.load(Relaxed)
    }

    /// Items yielded by the valid iterator.
    #[getter]
    pub fn yielded(&self) -> u64 {
        self.yielded.load(Relaxed)
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
