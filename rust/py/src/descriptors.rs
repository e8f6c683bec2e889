//! Converts file descriptors of Python code to owned descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use torchdata_core::error::OpenError;

pub fn duplicate(fd: i32) -> PyResult<OwnedFd> {
    if fd < 0 {
        return Err(PyOSError::new_err(format!("{fd} is not a file descriptor")));
    }
    // SAFETY: the descriptor is borrowed only during this call, which returns an error if the descriptor is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(borrowed.try_clone_to_owned()?)
}

pub fn take_fd(fd: i32) -> PyResult<OwnedFd> {
    let copy = duplicate(fd)?;
    // SAFETY: the caller has transferred ownership of `fd`, and `duplicate` has shown that `fd` is open.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(copy)
}

/// A file descriptor that is closed with the last reference to this object. The descriptor is not closed by a `__del__`
/// method, because a signal handler could raise an exception inside this method.
#[pyclass(frozen, module = "torchdata._native")]
pub struct OwnedDescriptor(Mutex<Option<OwnedFd>>);

impl OwnedDescriptor {
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
    #[new]
    fn new(fd: i32) -> PyResult<Self> {
        Ok(Self(Mutex::new(Some(take_fd(fd)?))))
    }

    fn fileno(&self) -> i32 {
        self.held().as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn close(&self) {
        let held = self.held().take();
        drop(held);
    }
}
