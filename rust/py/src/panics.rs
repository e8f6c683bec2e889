//! Converts Rust panics to Python exceptions in callbacks that PyO3 does not wrap. A panic that reached C code would
//! abort the process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PySystemError;
use pyo3::prelude::*;

/// Calls `body`. If `body` panics, sets a Python exception and returns `failed`. The caller must hold the GIL.
pub fn caught<R>(failed: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        raise(&*payload);
        failed
    })
}

#[cold]
fn raise(payload: &(dyn Any + Send)) {
    let what = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref().copied());
    let error = PySystemError::new_err(format!(
        "an error inside torchdata's extension, please report it to the developers: {}",
        what.unwrap_or("a panic without a message")
    ));
    // SAFETY: callers of `caught` hold the GIL.
    unsafe { Python::attach_unchecked(|py| error.restore(py)) };
}
