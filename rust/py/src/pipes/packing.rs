//! Computes the columns that `pack` adds to its rows.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use torchdata_core::packing;

use crate::codec::array_of;

#[pyfunction]
pub fn row_positions(py: Python<'_>, sizes: Vec<u32>) -> PyResult<Bound<'_, PyAny>> {
    array_of(py, &packing::positions(&sizes))
}

#[pyfunction]
pub fn row_bounds(py: Python<'_>, sizes: Vec<u32>) -> PyResult<Bound<'_, PyAny>> {
    let bounds = packing::bounds(&sizes)
        .ok_or_else(|| PyOverflowError::new_err("a row of 2,147,483,648 tokens or more has no int32 bounds"))?;
    array_of(py, &bounds)
}
