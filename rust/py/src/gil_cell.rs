//! A cell for values that only threads attached to the interpreter use.

use std::cell::RefCell;

use pyo3::prelude::*;

/// A value that threads attached to the interpreter look at, one after the other.
///
/// A reader that waits does not hold it, so a signal handler and other threads find it whole.
pub struct GilCell<T>(RefCell<T>);

// SAFETY: `with` asks for a token of the interpreter, which one thread has at a time; no `look` gives the token up.
// Should one do so, the cell refuses the second thread.
unsafe impl<T: Send> Sync for GilCell<T> {}

impl<T> GilCell<T> {
    pub fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Calls `look` with the value. It must not run Python code.
    #[inline]
    pub fn with<R>(&self, _py: Python<'_>, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.0.borrow_mut())
    }
}
