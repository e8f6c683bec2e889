//! A cell for a value that threads access only while they hold the GIL.

#[cfg(not(Py_GIL_DISABLED))]
use std::cell::RefCell as Cell;
#[cfg(Py_GIL_DISABLED)]
use std::sync::Mutex as Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

/// A value that one thread at a time accesses, with the GIL held.
///
/// A thread that waits must not borrow the value during the wait, so signal handlers and other threads can access it.
pub struct GilCell<T>(RefCell<T>);

// SAFETY: `with` requires a token of the interpreter, which only one thread has at a time. No `look` releases the GIL.
// If a `look` did, the cell would refuse access to the second thread.
unsafe impl<T: Send> Sync for GilCell<T> {}

impl<T> GilCell<T> {
    pub fn new(value: T) -> Self {
        Self(Cell::new(value))
    }

    /// Calls `look` with the value. `look` must not run Python code, or detach from the interpreter.
    #[inline]
    pub fn with<R>(&self, _py: Python<'_>, look: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(not(Py_GIL_DISABLED))]
        let mut value = self.0.borrow_mut();
        #[cfg(Py_GIL_DISABLED)]
        let mut value = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        look(&mut value)
    }
}

/// SYNC(gil): pairs with the same order in all other operations on numbers of this kind.
const ORDER: Ordering = if cfg!(Py_GIL_DISABLED) { Ordering::SeqCst } else { Ordering::Relaxed };

/// A number that only attached threads change.
#[derive(Default)]
pub struct GilNumber(AtomicU64);

impl GilNumber {
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    #[inline]
    pub fn load(&self) -> u64 {
        self.0.load(ORDER)
    }

    #[inline]
    pub fn store(&self, value: u64) {
        self.0.store(value, ORDER);
    }

    #[inline]
    pub fn increment(&self) {
        if cfg!(Py_GIL_DISABLED) {
            self.0.fetch_add(1, ORDER);
        } else {
            self.store(self.load() + 1);
        }
    }

    /// Stores `new` if the number is `old`. Returns whether it was.
    #[inline]
    pub fn replace(&self, old: u64, new: u64) -> bool {
        if cfg!(Py_GIL_DISABLED) {
            return self.0.compare_exchange(old, new, ORDER, ORDER).is_ok();
        }
        let is_old = self.load() == old;
        if is_old {
            self.store(new);
        }
        is_old
    }
}
