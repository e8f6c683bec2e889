//! The watch over loaders' `next`, as Python sees it: what to call if one does not come back, and when to end the
//! thread.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use torchdata_core::process::watching::{self, Stall, Watch};

/// The function to call, with its key, the seconds and the thread, if a call does not come back.
///
/// FORK: filled in by an import, which Python's own lock covers.
static ON_STALL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The watch of this process. A thread that holds the GIL may ask.
pub fn watch(_py: Python<'_>) -> &'static Watch {
    watching::watch(tell)
}

/// Runs in the watching thread, which does not come here again before the GIL could be had.
fn tell(stall: &Stall) {
    Python::try_attach(|py| {
        if let (true, Some(on_stall)) = (stall.lasts(), ON_STALL.get(py))
            && let Err(error) = on_stall.call1(py, (stall.key, stall.waited.as_secs_f64(), stall.thread))
        {
            error.write_unraisable(py, None); // there is nobody to raise it to
        }
    });
}

/// Says what is called. The first function is kept.
#[pyfunction]
pub fn watch_with(py: Python<'_>, on_stall: Py<PyAny>) {
    let _ = ON_STALL.set(py, on_stall);
}

/// Ends the watching thread, for a fork that is to come.
#[pyfunction]
pub fn watch_before_fork(py: Python<'_>) {
    let watch = watch(py);
    watch.fork_begins();
    py.detach(|| watch.stop());
}

/// Lets it begin again, after the fork, in the parent.
#[pyfunction]
pub fn watch_after_fork(py: Python<'_>) {
    watch(py).fork_is_over();
}

/// Ends it for good: the interpreter exits.
#[pyfunction]
pub fn watch_is_over(py: Python<'_>) {
    watching::over();
    let watch = watch(py);
    py.detach(|| watch.stop());
}
