//! Saves and restores memory of Python objects, namely the random number generators of one shard while another shard
//! runs in the same process.

use std::sync::{Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

/// Saves the bytes of writable buffers, and restores them later.
#[pyclass(frozen, module = "torchdata._native")]
pub struct MemoryCopy {
    /// Each buffer, with the bytes that were saved last.
    parts: Mutex<Vec<(PyBuffer<u8>, Vec<u8>)>>,
}

impl MemoryCopy {
    fn for_each(&self, act: impl FnMut(&mut (PyBuffer<u8>, Vec<u8>)) -> PyResult<()>) -> PyResult<()> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().try_for_each(act)
    }
}

#[pymethods]
impl MemoryCopy {
    #[new]
    fn new(py: Python<'_>, buffers: Vec<PyBuffer<u8>>) -> PyResult<Self> {
        let parts = buffers.into_iter().map(|buffer| buffer.to_vec(py).map(|saved| (buffer, saved)));
        Ok(Self { parts: Mutex::new(parts.collect::<PyResult<_>>()?) })
    }

    /// Saves the current bytes of the buffers.
    fn save(&self, py: Python<'_>) -> PyResult<()> {
        self.for_each(|(buffer, saved)| buffer.copy_to_slice(py, saved))
    }

    /// Copies the bytes that were saved last back into the buffers.
    fn load(&self, py: Python<'_>) -> PyResult<()> {
        self.for_each(|(buffer, saved)| buffer.copy_from_slice(py, saved))
    }
}
