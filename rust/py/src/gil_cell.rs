//! Stores values that threads access only while they are attached to the interpreter.
//!
//! If the interpreter has a GIL, the types of this module use plain loads and stores, which are much faster than a
//! mutex. On a free-threaded interpreter, [`GilCell`] is a mutex.
//!
//! FORK: on a free-threaded interpreter, `os.fork` never stops a thread that accesses a [`GilCell`], so a forked child
//! inherits no locked mutex.

#[cfg(not(Py_GIL_DISABLED))]
use std::cell::RefCell as Cell;
#[cfg(Py_GIL_DISABLED)]
use std::sync::Mutex as Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

/// A value that threads access only while they are attached to the interpreter. A thread that accesses the value
/// neither waits nor runs Python code.
#[derive(Default)]
pub struct GilCell<T>(Cell<T>);

// SAFETY: only one thread at a time has the interpreter token that `with` requires, and closures passed to `with` never
// release the GIL. If a closure released the GIL, an access by another thread would make the `RefCell` panic.
#[cfg(not(Py_GIL_DISABLED))]
unsafe impl<T: Send> Sync for GilCell<T> {}

impl<T> GilCell<T> {
    pub fn new(value: T) -> Self {
        Self(Cell::new(value))
    }

    /// Calls `look` with the value. The closure `look` must not run Python code or detach from the interpreter.
    #[inline]
    pub fn with<R>(&self, _py: Python<'_>, look: impl FnOnce(&mut T) -> R) -> R {
        #[cfg(not(Py_GIL_DISABLED))]
        let mut value = self.0.borrow_mut();
        #[cfg(Py_GIL_DISABLED)]
        let mut value = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        look(&mut value)
    }
}

/// SYNC(gil): all operations on a `GilNumber` use this order, and pair with each other.
const ORDER: Ordering = if cfg!(Py_GIL_DISABLED) { Ordering::SeqCst } else { Ordering::Relaxed };

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
