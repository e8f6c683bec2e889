//! Ensures that only the process that created an end of a link uses this end, and that its forked children do not.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use torchdata_core::process::fork;

#[derive(Clone, Copy)]
pub struct OwningProcess {
    generation: u64,
    pid: u32,
}

impl OwningProcess {
    pub fn this() -> Self {
        Self { generation: fork::generation(), pid: std::process::id() }
    }

    #[inline]
    pub fn is_this(self) -> bool {
        self.generation == fork::generation()
    }

    /// Returns an error in a forked child, or ends this child if user code has forked it from a worker process.
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
            "this loader's workers belong to process {owner}, but this process is a forked child of it: create \
             another loader in the child"
        )),
    }
}
