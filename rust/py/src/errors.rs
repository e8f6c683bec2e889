//! Converts errors of the Rust core to Python exceptions.

use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use torchdata_core::error::{Corrupted, NoMemory, OpenError, TakeError};

pub fn corrupted(error: Corrupted) -> PyErr {
    PyRuntimeError::new_err(format!("{error}; shut the loader down and start a new one"))
}

pub fn memory(error: NoMemory) -> PyErr {
    PyMemoryError::new_err(format!(
        "{error} that has arrived: use smaller items, or raise the limit (ulimit -v, or the container's)"
    ))
}

pub fn take(error: TakeError) -> PyErr {
    match error {
        TakeError::Corrupted(error) => corrupted(error),
        TakeError::NoMemory(error) => memory(error),
    }
}

pub fn open(error: OpenError) -> PyErr {
    match &error {
        OpenError::System { source, .. } | OpenError::NoRoom { source, .. } => match source.raw_os_error() {
            Some(errno) => PyOSError::new_err((errno, error.to_string())),
            None => PyOSError::new_err(error.to_string()),
        },
        OpenError::Taken(_) => PyValueError::new_err(error.to_string()),
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}
