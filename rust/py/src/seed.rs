//! Provides the Python class for the seed generator.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use torchdata_core::seed::SeedGenerator;

/// The class that `torchdata.dataloader2.random.SeedGenerator` wraps.
#[pyclass(frozen, name = "SeedGenerator", module = "torchdata._native")]
pub struct PySeedGenerator(Mutex<SeedGenerator>);

impl PySeedGenerator {
    fn lock(&self) -> MutexGuard<'_, SeedGenerator> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PySeedGenerator {
    #[new]
    fn new(seed: u64) -> Self {
        Self(Mutex::new(SeedGenerator::new(seed)))
    }

    fn seed(&self, seed: u64) {
        self.lock().seed(seed);
    }

    fn generate_shared_seed(&self) -> u64 {
        self.lock().generate_shared_seed()
    }

    fn generate_seed(&self) -> u64 {
        self.lock().generate_seed()
    }

    fn spawn(&self, worker_id: u64) -> Self {
        Self(Mutex::new(self.lock().spawn(worker_id)))
    }

    fn spawn_in_place(&self, worker_id: u64) {
        self.lock().spawn_in_place(worker_id);
    }

    fn export<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.lock().export())
    }

    #[staticmethod]
    fn from_state(state: &[u8]) -> PyResult<Self> {
        SeedGenerator::import(state)
            .map(|seeds| Self(Mutex::new(seeds)))
            .map_err(|e| PyValueError::new_err(e.to_string()))
    }

    fn __eq__(&self, other: &Bound<'_, Self>) -> bool {
        std::ptr::eq(self, other.get()) || *self.lock() == *other.get().lock()
    }
}
