//! Exchanges the module variables and random number generators of two shards when a worker process switches between the
//! shards.
//!
//! The exchange runs no Python code, so a signal handler never finds variables of both shards mixed together.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyKeyError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

#[pyclass(frozen, new = "from_fields", module = "torchdata._native")]
pub struct Exchange {
    /// Triples (dictionary or object, name, value): before an exchange, each entry or attribute must have this value.
    expected: Vec<(Py<PyAny>, Py<PyString>, Py<PyAny>)>,
    variables: Vec<(Py<PyDict>, Py<PyString>)>,
    memory: Vec<PyBuffer<u8>>,
}

#[pymethods]
impl Exchange {
    fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
        for (owner, name, value) in &self.expected {
            let owner = owner.bind(py);
            let found = match owner.cast::<PyDict>() {
                Ok(dict) => dict.get_item(name)?,
                Err(_) => owner.getattr_opt(name)?,
            };
            if !found.map_or_else(|| value.is_none(py), |found| found.is(value)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for (owner, _, value) in &self.expected {
            visit.call(owner)?;
            visit.call(value)?;
        }
        self.variables.iter().try_for_each(|(dict, _)| visit.call(dict))
    }
}

/// The module variables and random number generators of a shard, which are saved while another shard runs.
#[pyclass(subclass, module = "torchdata._native")]
pub struct SavedGlobals {
    exchange: Option<Py<Exchange>>,
    values: Vec<Py<PyAny>>,
    memory: Vec<Vec<u8>>,
    #[pyo3(get)]
    is_away: bool,
    /// Whether this shard can be exchanged with only `save` and `load`, without calling the Python function `exchange`.
    #[pyo3(get, set)]
    is_all: bool,
    /// The shard that runs while the variables of this object's shard are saved. If an exception has prevented the call
    /// of `leave`, `__exit__` saves the variables of `other` before it restores the variables of this object's shard.
    #[pyo3(set)]
    other: Option<Py<SavedGlobals>>,
}

#[pymethods]
impl SavedGlobals {
    #[new]
    fn new() -> Self {
        Self { exchange: None, values: Vec::new(), memory: Vec::new(), is_away: false, is_all: false, other: None }
    }

    fn save(&mut self, py: Python<'_>, exchange: Py<Exchange>) -> PyResult<()> {
        self.memory = exchange.get().memory.iter().map(|buffer| vec![0; buffer.len_bytes()]).collect();
        self.exchange = Some(exchange);
        self.save_again(py)
    }

    fn load(&mut self, py: Python<'_>) -> PyResult<()> {
        self.is_away = false;
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let Exchange { variables, memory, .. } = exchange.get();
        for ((dict, name), value) in variables.iter().zip(&self.values) {
            dict.bind(py).set_item(name, value)?;
        }
        memory.iter().zip(&self.memory).try_for_each(|(buffer, saved)| buffer.copy_from_slice(py, saved))
    }

    /// Restores the shard's module variables and random generators, unless `load` has already restored them. Ctrl-C can
    /// interrupt Python code before it calls `load`, but the interpreter always calls `__exit__`.
    #[pyo3(signature = (*_exc_info))]
    fn __exit__(&mut self, py: Python<'_>, _exc_info: &Bound<'_, PyTuple>) -> PyResult<()> {
        if !self.is_away {
            return Ok(());
        }
        if let Some(other) = self.other.take() {
            let mut other = other.borrow_mut(py);
            if !other.is_away {
                other.save_again(py)?;
            }
        }
        self.load(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.exchange)?;
        visit.call(&self.other)?;
        self.values.iter().try_for_each(|value| visit.call(value))
    }

    fn __clear__(&mut self) {
        self.values.clear();
    }
}

impl SavedGlobals {
    /// Saves the module variables and random generators of this shard, and activates the variables and generators of
    /// the shard `other`. Returns false and changes nothing if `save` and `load` do not cover the complete state, for
    /// example because a library was loaded after the shards were saved.
    fn switch_to(&mut self, py: Python<'_>, other: &mut Self) -> PyResult<bool> {
        let (Some(exchange), Some(of_other)) = (&self.exchange, &other.exchange) else { return Ok(false) };
        let is_enough = self.is_all && other.is_all && !self.is_away && other.is_away && exchange.is(of_other);
        if !is_enough || !exchange.get().is_current(py)? {
            return Ok(false);
        }
        self.save_again(py)?;
        other.load(py)?;
        Ok(true)
    }

    fn save_again(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let Exchange { variables, memory, .. } = exchange.get();
        self.values.clear();
        for (dict, name) in variables {
            let value = dict.bind(py).get_item(name)?.ok_or_else(|| PyKeyError::new_err(name.clone_ref(py)))?;
            self.values.push(value.unbind());
        }
        self.is_away = true;
        memory.iter().zip(&mut self.memory).try_for_each(|(buffer, saved)| buffer.copy_to_slice(py, saved))
    }
}

#[pyclass(frozen, module = "torchdata._native")]
pub struct ShardTurns {
    shards: Vec<Py<SavedGlobals>>,
    /// The Python function that exchanges the variables of two shards if the native `switch_to` returns false.
    exchange: Py<PyAny>,
    entered: AtomicUsize,
}

#[pymethods]
impl ShardTurns {
    #[new]
    fn new(shards: Vec<Py<SavedGlobals>>, exchange: Py<PyAny>, entered: usize) -> Self {
        Self { shards, exchange, entered: AtomicUsize::new(entered) }
    }

    #[getter]
    fn entered(&self) -> usize {
        self.entered.load(Relaxed)
    }

    pub fn enter(&self, py: Python<'_>, shard: usize) -> PyResult<()> {
        let left = self.entered.swap(shard, Relaxed);
        if shard != left {
            let is_switched = {
                let (mut from, mut to) = (self.shards[left].borrow_mut(py), self.shards[shard].borrow_mut(py));
                from.switch_to(py, &mut to)?
            };
            if !is_switched {
                self.exchange.call1(py, (left, shard))?;
            }
        }
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.exchange)?;
        self.shards.iter().try_for_each(|shard| visit.call(shard))
    }
}
