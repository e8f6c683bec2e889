//! A cell for values that are only accessed by threads that hold the GIL.

use std::cell::RefCell;

use pyo3::prelude::*;

/// A value that threads access one at a time, with the GIL held.
///
/// A reader that waits does not borrow the value, so signal handlers and other threads find a consistent value.
pub struct GilCell<T>(RefCell<T>);

// SAFETY: `with` requires a token of the interpreter, which one thread has at a time, and no `look` releases the GIL.
// If one did, the cell would refuse the second thread.
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
