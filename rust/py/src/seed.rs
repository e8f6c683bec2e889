use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use torchdata_core::seed::SeedGenerator;

#[pyclass(name = "SeedGenerator", module = "torchdata._native")]
pub struct PySeedGenerator(SeedGenerator);

#[pymethods]
impl PySeedGenerator {
    #[new]
    fn new(seed: u64) -> Self {
        Self(SeedGenerator::new(seed))
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
