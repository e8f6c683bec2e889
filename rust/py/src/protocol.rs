//! Provides the Python classes that decide how children react to commands, and which children are replaced.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use torchdata_core::protocol::{Acknowledged, Command, Obedience, Replacing, Step};

fn command(kind: &str, number: u64) -> PyResult<Command> {
    let epoch =
        || u32::try_from(number).map_err(|_| PyValueError::new_err(format!("{number} is not the number of an epoch")));
    match kind {
        "epoch" => epoch().map(Command::Epoch),
        "repeat" => epoch().map(Command::Repeat),
        "call" => Ok(Command::Call),
        "stop" => Ok(Command::Stop),
        _ => Err(PyValueError::new_err(format!("{kind:?} is not a command"))),
    }
}

/// Returns the value that announces a command in shared memory, or None for `call`, which ends no epoch.
#[pyfunction]
pub fn order_of(kind: &str, number: u64) -> PyResult<Option<u64>> {
    command(kind, number).map(Command::order)
}

#[pyclass(frozen, name = "Obedience", module = "torchdata._native")]
pub struct PyObedience(Mutex<Obedience>);

impl PyObedience {
    fn with<T>(&self, look: impl FnOnce(&mut Obedience) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl PyObedience {
    #[new]
    fn new(dispatches: bool) -> Self {
        Self(Mutex::new(Obedience::new(dispatches)))
    }

    /// Returns the next step ("leave", "run", "apply" or "end"), and whether to acknowledge the command before and
    /// after this step.
    fn obey(&self, kind: &str, number: u64) -> PyResult<(&'static str, bool, bool)> {
        let command = command(kind, number)?;
        Ok(match self.with(|obedience| obedience.obey(command)) {
            Step::Leave => ("leave", false, false),
            Step::Run(Acknowledged::Begun) => ("run", true, false),
            Step::Run(Acknowledged::Done) => ("run", false, true),
            Step::Run(Acknowledged::Both) => ("run", true, true),
            Step::Apply => ("apply", false, true),
            Step::End => ("end", false, false),
        })
    }

    fn leave(&self) {
        self.with(Obedience::leave);
    }

    #[getter]
    fn runs(&self) -> bool {
        self.with(|obedience| obedience.runs())
    }
}

/// The dispatching process is the last child (see `torchdata_core::protocol::Replacing`).
#[pyclass(frozen, name = "Replacing", module = "torchdata._native")]
pub struct PyReplacing(Mutex<Replacing>);

impl PyReplacing {
    fn with<T>(&self, look: impl FnOnce(&mut Replacing) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl PyReplacing {
    #[new]
    fn new(workers: usize, dispatches: bool) -> Self {
        Self(Mutex::new(Replacing::new(workers, dispatches)))
    }

    fn begin(&self) {
        self.with(Replacing::begin);
    }

    fn rests(&self, child: usize) -> bool {
        self.with(|replacing| replacing.rests(child))
    }

    fn wanted(&self, dead: Vec<usize>, ended: Vec<bool>) -> Vec<usize> {
        self.with(|replacing| replacing.wanted(&dead, &ended))
    }

    /// Returns (number of exits at this item, whether this exit is new, whether to give up).
    fn judge(&self, child: usize, process: u64, epoch: u32, received: Vec<u64>, halted: bool) -> (usize, bool, bool) {
        let verdict = self.with(|replacing| replacing.judge(child, process, epoch, &received, halted));
        (verdict.deaths, verdict.is_new, verdict.is_final())
    }

    fn item_of(&self, child: usize, received: Vec<u64>) -> u64 {
        self.with(|replacing| replacing.item_of(child, &received))
    }

    fn repeats(&self, child: usize, ended: Vec<bool>) -> bool {
        self.with(|replacing| replacing.repeats(child, &ended))
    }
}
