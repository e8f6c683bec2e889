//! Provides the Python class for the seed generator.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use torchdata_core::seed::SeedGenerator;

/// The class that `torchdata.dataloader2.random.SeedGenerator` wraps.
#[pyclass(name = "SeedGenerator", module = "torchdata._native")]
pub struct PySeedGenerator(SeedGenerator);

#[pymethods]
impl PySeedGenerator {
    #[new]
    fn new(seed: u64) -> Self {
        Self(SeedGenerator::new(seed))
    }

    fn seed(&mut self, seed: u64) {
        self.0.seed(seed);
    }

    fn generate_shared_seed(&mut self) -> u64 {
        self.0.generate_shared_seed()
    }

    fn generate_seed(&mut self) -> u64 {
        self.0.generate_seed()
    }

    fn spawn(&self, worker_id: u64) -> Self {
        Self(self.0.spawn(worker_id))
    }

    fn spawn_in_place(&mut self, worker_id: u64) {
        self.0.spawn_in_place(worker_id);
    }

    fn export<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.export())
    }

    #[staticmethod]
    fn from_state(state: &[u8]) -> PyResult<Self> {
        SeedGenerator::import(state).map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
