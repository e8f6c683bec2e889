//! The one place where errors of the core become Python exceptions.

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use torchdata_core::error::{Corrupted, OpenError};

/// Memory that a peer wrote breaks the rules.
pub fn corrupted(error: Corrupted) -> PyErr {
    PyRuntimeError::new_err(format!("{error}; shut the loader down and start a new one"))
}

/// Shared memory or a watch could not be opened.
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
