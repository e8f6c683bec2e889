//! Provides the Python class of the generator of random seeds.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use torchdata_core::seed::SeedGenerator;

/// Draws seeds as documented in `torchdata.dataloader2.random`.
#[pyclass(name = "SeedGenerator", subclass, module = "torchdata._native")]
pub struct PySeedGenerator(SeedGenerator);

#[pymethods]
impl PySeedGenerator {
    /// This constructor ignores its arguments, because the `__init__` method of the subclass uses them.
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self(SeedGenerator::new(0))
    }

    fn restart(&mut self, seed: u64) {
        self.0 = SeedGenerator::new(seed);
    }

    /// Returns a seed from 0 to 2**64 - 1 that is equal on all ranks and workers.
    fn generate_shared_seed(&mut self) -> u64 {
        self.0.generate_shared_seed()
    }

    /// Returns a seed from 0 to 2**64 - 1 that differs between ranks and workers after `spawn`.
    fn generate_seed(&mut self) -> u64 {
        self.0.generate_seed()
    }

    fn become_child(&mut self, worker_id: u64) {
        self.0 = self.0.spawn(worker_id);
    }

    fn __getstate__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.export())
    }

    fn __setstate__(&mut self, state: &[u8]) -> PyResult<()> {
        self.0 = SeedGenerator::import(state).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(())
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
