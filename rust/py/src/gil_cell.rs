//! A cell for a value that threads access only while they hold the GIL.

use std::cell::RefCell;

use pyo3::prelude::*;

/// A value that one thread at a time accesses, with the GIL held.
///
/// A thread must not borrow the value during a wait, so that signal handlers and other threads can access the value.
pub struct GilCell<T>(RefCell<T>);

// SAFETY: `with` requires a token of the interpreter, which only one thread has at a time. No `look` releases the GIL.
// If a `look` released the GIL, the cell would refuse access to a second thread.
unsafe impl<T: Send> Sync for GilCell<T> {}

impl<T> GilCell<T> {
    pub fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Calls `look` with the value. `look` must not run Python code.
    #[inline]
    pub fn with<R>(&self, _py: Python<'_>, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.0.borrow_mut())
    }
}
