//! Pickles of plain data.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use torchdata_core::formats::pickle;

/// Raises ValueError if bytes are no pickle of plain data, of which each instruction asks for what is there.
#[pyfunction]
#[pyo3(signature = (pickled, /))]
pub fn check_plain_pickle(pickled: &[u8]) -> PyResult<()> {
    pickle::check_plain(pickled).map_err(|error| PyValueError::new_err(error.to_string()))
}
