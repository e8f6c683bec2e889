//! Which process an end of a link belongs to: the one that made it, and none that was forked from it.
//!
//! A child of main's that reads or commands is told so by an error. A child that user code forks inside a worker comes
//! back into the worker's own loop, with a value or an exception of the user's function. It must not speak in the
//! worker's name, so it ends there.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use torchdata_core::process::fork;

/// The process that made an end of a link.
#[derive(Clone, Copy)]
pub struct OwningProcess {
    generation: u64,
    pid: u32,
}

impl OwningProcess {
    /// This process.
    pub fn this() -> Self {
        Self { generation: fork::generation(), pid: std::process::id() }
    }

    /// Whether it is this process.
    #[inline]
    pub fn is_this(self) -> bool {
        self.generation == fork::generation()
    }

    /// An error in a process that was forked from it. A process that user code has forked inside a worker ends instead.
    #[inline]
    pub fn check(self) -> PyResult<()> {
        if self.is_this() { Ok(()) } else { Err(Python::attach(|py| refused(py, self.pid))) }
    }
}

#[cold]
fn refused(py: Python<'_>, owner: u32) -> PyErr {
    match py.import("torchdata._engine.processes.strangers").and_then(|module| module.call_method0("leave")) {
        Err(error) => error,
        Ok(_) => PyRuntimeError::new_err(format!(
            "this loader's workers belong to process {owner}, of which this one is a forked child: make a loader of your own \
             in the child"
        )),
    }
}
