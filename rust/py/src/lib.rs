//! The extension module `torchdata._native`: converts, enters the core, wraps. No algorithm lives here.
// PyO3's macros generate items without docs and unsafe blocks of their own.
#![allow(missing_docs)]

use pyo3::prelude::*;

mod guard;

/// Registers every class and function of the extension.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<guard::IterationToken>()?;
    module.add_class::<guard::IteratorGuard>()?;
    Ok(())
}
