//! Provides the Python classes that decide how child processes react to commands, and which child processes are
//! replaced.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use torchdata_core::protocol::{Command, CommandState, Replacing, Step};

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

/// Returns the integer that the main process writes into shared memory to announce a command, or None for the command
/// `call`.
#[pyfunction]
pub fn order_of(kind: &str, number: u64) -> PyResult<Option<u64>> {
    command(kind, number).map(Command::order)
}

#[pyclass(name = "CommandState", module = "torchdata._native")]
pub struct PyCommandState(CommandState);

#[pymethods]
impl PyCommandState {
    #[new]
    fn new(dispatches: bool) -> Self {
        Self(CommandState::new(dispatches))
    }

    /// Returns the next step of a command, whether the child must acknowledge the command before this step, and whether
    /// it must do so after this step.
    fn accept(&mut self, kind: &str, number: u64) -> PyResult<(&'static str, bool, bool)> {
        Ok(match self.0.accept(command(kind, number)?) {
            Step::Leave => ("leave", false, false),
            Step::Run { first, last } => ("run", first, last),
            Step::Apply => ("apply", false, true),
            Step::End => ("end", false, false),
        })
    }

    fn leave(&mut self) {
        self.0.leave();
    }
}

#[pyclass(name = "Replacing", module = "torchdata._native")]
pub struct PyReplacing(Replacing);

#[pymethods]
impl PyReplacing {
    #[new]
    fn new(workers: usize, dispatches: bool) -> Self {
        Self(Replacing::new(workers, dispatches))
    }

    fn begin(&mut self) {
        self.0.begin();
    }

    fn rests(&self, child: usize) -> bool {
        self.0.rests(child)
    }

    fn wanted(&mut self, exited: Vec<usize>, ended: Vec<bool>) -> Vec<usize> {
        self.0.wanted(&exited, &ended)
    }

    /// Records that a child's process has exited while it computed an item. Returns how many of the child's processes
    /// have exited at this item, whether this is the first call for `process`, and whether the loader must give up.
    fn judge(
        &mut self,
        child: usize,
        process: u64,
        epoch: u32,
        received: Vec<u64>,
        halted: bool,
    ) -> (usize, bool, bool) {
        let verdict = self.0.judge(child, process, epoch, &received, halted);
        (verdict.exits, verdict.is_new, verdict.is_final())
    }

    fn item_of(&self, child: usize, received: Vec<u64>) -> u64 {
        self.0.item_of(child, &received)
    }

    fn repeats(&mut self, child: usize, ended: Vec<bool>) -> bool {
        self.0.repeats(child, &ended)
    }
}
