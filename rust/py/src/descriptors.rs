//! Descriptors that Python hands to the engine: borrowed, or given away.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

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
