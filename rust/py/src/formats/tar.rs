//! Headers of tar archives.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use torchdata_core::formats::tar;

/// Name and size from the header of an ordinary file in a tar archive; None if `tarfile` must look into it.
#[pyfunction]
#[pyo3(signature = (block, /))]
pub fn tar_file_header(block: &[u8]) -> Option<(&str, u64)> {
    tar::file_header(block)
}

/// How many records an extended header holds, from its body.
///
/// Raises ValueError if its form is wrong, so that no reader meets what would cost it more than linear time.
#[pyfunction]
#[pyo3(signature = (body, /))]
pub fn tar_pax_records(body: &[u8]) -> PyResult<usize> {
    tar::pax_records(body).map_err(|error| PyValueError::new_err(error.to_string()))
}
