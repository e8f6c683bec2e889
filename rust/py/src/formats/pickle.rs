//! Checks that a pickle contains only the instructions of plain data.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use torchdata_core::formats::pickle;

#[pyfunction]
#[pyo3(signature = (pickled, /))]
pub fn check_plain_pickle(pickled: &[u8]) -> PyResult<()> {
    pickle::check_plain(pickled).map_err(|error| PyValueError::new_err(error.to_string()))
}
