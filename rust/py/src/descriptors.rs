//! Descriptors that Python hands to the engine: borrowed, or given away.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use torchdata_core::error::OpenError;

/// Takes a duplicate of a descriptor that Python owns.
pub fn duplicate(fd: i32) -> PyResult<OwnedFd> {
    if fd < 0 {
        return Err(PyOSError::new_err(format!("{fd} is no file descriptor")));
    }
    // SAFETY: borrowed for the duration of the call; a number that is not open makes the system call fail.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(borrowed.try_clone_to_owned()?)
}

/// Takes over a descriptor that Python gives away.
pub fn take_fd(fd: i32) -> PyResult<OwnedFd> {
    let copy = duplicate(fd)?;
    // SAFETY: the caller gave the descriptor away, and `duplicate` has just shown that it is open.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(copy)
}

/// A descriptor that is closed with its last reference, by no line of Python: a signal handler that raises in a
/// `__del__` would be lost, and what it raised, too.
#[pyclass(frozen, module = "torchdata._native")]
pub struct OwnedDescriptor(Mutex<Option<OwnedFd>>);

impl OwnedDescriptor {
    /// Another one for the same file.
    pub fn copy(&self) -> Result<OwnedFd, OpenError> {
        let copy = self.held().as_ref().map(OwnedFd::try_clone);
        copy.unwrap_or(Err(io::ErrorKind::InvalidInput.into())).map_err(OpenError::watch)
    }

    fn held(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl OwnedDescriptor {
    /// Takes over a descriptor, under another number.
    #[new]
    fn new(fd: i32) -> PyResult<Self> {
        Ok(Self(Mutex::new(Some(take_fd(fd)?))))
    }

    /// Its number; -1 once it is closed.
    fn fileno(&self) -> i32 {
        self.held().as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Closes it. Does nothing if it is closed.
    fn close(&self) {
        let held = self.held().take();
        drop(held);
    }
}
