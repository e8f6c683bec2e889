//! Provides the Python functions that set the callback for stalled calls of loaders, and that stop the watching thread.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use torchdata_core::process::watching::{self, Stall, Watch};

/// The callback for a stalled call of a loader, with the arguments (key, seconds, thread).
///
/// FORK: the cell is set during an import, while Python's import lock prevents a fork.
static ON_STALL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

pub fn watch(_py: Python<'_>) -> &'static Watch {
    watching::watch(report)
}

/// Waiting for the GIL is harmless here, because it only delays the next report.
fn report(stall: &Stall) {
    Python::try_attach(|py| {
        if let (true, Some(on_stall)) = (stall.lasts(), ON_STALL.get(py))
            && let Err(error) = on_stall.call1(py, (stall.key, stall.waited.as_secs_f64(), stall.thread))
        {
            error.write_unraisable(py, None); // no caller could receive the exception
        }
    });
}

#[pyfunction]
pub fn watch_with(py: Python<'_>, on_stall: Py<PyAny>) {
    let _ = ON_STALL.set(py, on_stall);
}

#[pyfunction]
pub fn watch_before_fork(py: Python<'_>) {
    let watch = watch(py);
    watch.fork_begins();
    py.detach(|| watch.stop());
}

#[pyfunction]
pub fn watch_after_fork(py: Python<'_>) {
    watch(py).fork_is_over();
}

#[pyfunction]
pub fn watch_is_over(py: Python<'_>) {
    watching::over();
    let watch = watch(py);
    py.detach(|| watch.stop());
}
