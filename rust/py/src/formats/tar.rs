//! Headers of tar archives.

use pyo3::prelude::*;
use torchdata_core::formats::tar;

/// Name and size from the header of an ordinary file in a tar archive; None where `tarfile` must look into it.
#[pyfunction]
#[pyo3(signature = (block, /))]
pub fn tar_file_header(block: &[u8]) -> Option<(&str, u64)> {
    tar::file_header(block)
}
