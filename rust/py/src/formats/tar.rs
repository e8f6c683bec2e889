//! Parses the headers of tar archives.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use torchdata_core::formats::tar;

/// Returns the name and size in the header of a regular file, or None if only `tarfile` can read the header.
#[pyfunction]
#[pyo3(signature = (block, /))]
pub fn tar_file_header(block: &[u8]) -> Option<(&str, u64)> {
    tar::file_header(block)
}

/// Returns the number of records in the body of an extended header, or raises ValueError if the body is invalid.
#[pyfunction]
#[pyo3(signature = (body, /))]
pub fn tar_pax_records(body: &[u8]) -> PyResult<usize> {
    tar::pax_records(body).map_err(|error| PyValueError::new_err(error.to_string()))
}
