//! Decisions of the protocol that Python carries out: the obedience of a child, and the replacing of children by main.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use torchdata_core::protocol::{Acknowledged, Command, Obedience, Replacing, Step, TRIES};

/// The command of a kind: "epoch" or "repeat" with the number of an epoch, "call" with the number of a function, or
/// "stop".
fn command(kind: &str, number: u64) -> PyResult<Command> {
    let epoch =
        || u32::try_from(number).map_err(|_| PyValueError::new_err(format!("{number} is no number of an epoch")));
    match kind {
        "epoch" => epoch().map(Command::Epoch),
        "repeat" => epoch().map(Command::Repeat),
        "call" => Ok(Command::Call(number)),
        "stop" => Ok(Command::Stop),
        _ => Err(PyValueError::new_err(format!("{kind:?} is no command"))),
    }
}

/// The word that main orders before it sends a command; None if the command gives no epoch up.
#[pyfunction]
pub fn order_of(kind: &str, number: u64) -> PyResult<Option<u64>> {
    command(kind, number).map(Command::order)
}

/// The state of a child as far as commands go.
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

    /// The step that a command asks for: "leave", "run", "apply", "skip" or "end"; and whether it is acknowledged
    /// before and behind that.
    fn obey(&self, kind: &str, number: u64) -> PyResult<(&'static str, bool, bool)> {
        let command = command(kind, number)?;
        Ok(match self.with(|obedience| obedience.obey(command)) {
            Step::Leave => ("leave", false, false),
            Step::Run(Acknowledged::Begun) => ("run", true, false),
            Step::Run(Acknowledged::Done) => ("run", false, true),
            Step::Run(Acknowledged::Both) => ("run", true, true),
            Step::Apply => ("apply", false, true),
            Step::Skip => ("skip", false, true),
            Step::End => ("end", false, false),
        })
    }

    /// Notes that the epoch is over, or was left.
    fn leave(&self) {
        self.with(Obedience::leave);
    }

    /// Notes functions, up to this number, that came with the epoch.
    fn expect(&self, number: u64) {
        self.with(|obedience| obedience.expect(number));
    }

    /// Whether an epoch runs.
    #[getter]
    fn runs(&self) -> bool {
        self.with(|obedience| obedience.runs())
    }
}

/// The places of the children of a loader, the dispatching process last.
#[pyclass(frozen, name = "Replacing", module = "torchdata._native")]
pub struct PyReplacing {
    replacing: Mutex<Replacing>,
    workers: usize,
    children: usize,
}

impl PyReplacing {
    fn with<T>(&self, look: impl FnOnce(&mut Replacing) -> T) -> T {
        look(&mut self.replacing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn check(&self, children: &[usize], by_worker: usize) -> PyResult<()> {
        if by_worker != self.workers || children.iter().any(|&child| child >= self.children) {
            return Err(PyIndexError::new_err(format!(
                "there are {} children, {} of them workers",
                self.children, self.workers
            )));
        }
        Ok(())
    }
}

#[pymethods]
impl PyReplacing {
    /// Deaths of one child at one item after which the loader gives up.
    #[classattr]
    const TRIES: usize = TRIES;

    #[new]
    fn new(workers: usize, dispatches: bool) -> Self {
        let replacing = Mutex::new(Replacing::new(workers, dispatches));
        Self { replacing, workers, children: workers + usize::from(dispatches) }
    }

    /// Notes that an epoch begins.
    fn begin(&self) {
        self.with(Replacing::begin);
    }

    /// Whether a child has died, and is not wanted any more in this epoch.
    fn rests(&self, child: usize) -> PyResult<bool> {
        self.check(&[child], self.workers)?;
        Ok(self.with(|replacing| replacing.rests(child)))
    }

    /// The children whose places are to be taken; the others of the dead rest.
    fn wanted(&self, dead: Vec<usize>, ended: Vec<bool>) -> PyResult<Vec<usize>> {
        self.check(&dead, ended.len())?;
        Ok(self.with(|replacing| replacing.wanted(&dead, &ended)))
    }

    /// Judges a death: how many processes have died at this item, whether this one was not judged before, and whether
    /// no other one is to try.
    fn judge(
        &self,
        child: usize,
        process: u64,
        epoch: u32,
        received: Vec<u64>,
        halted: bool,
    ) -> PyResult<(usize, bool, bool)> {
        self.check(&[child], received.len())?;
        let verdict = self.with(|replacing| replacing.judge(child, process, epoch, &received, halted));
        Ok((verdict.deaths, verdict.is_new, verdict.is_final()))
    }

    /// The number of the item, counted from 0 in the epoch, at which a child was.
    fn item_of(&self, child: usize, received: Vec<u64>) -> PyResult<u64> {
        self.check(&[child], received.len())?;
        Ok(self.with(|replacing| replacing.item_of(child, &received)))
    }

    /// Whether the child that takes the place repeats an epoch of which main has everything.
    fn repeats(&self, child: usize, ended: Vec<bool>) -> PyResult<bool> {
        self.check(&[child], ended.len())?;
        Ok(self.with(|replacing| replacing.repeats(child, &ended)))
    }

    /// Whether those that take places run the rest of the epoch before this one first.
    #[staticmethod]
    fn repeats_earlier(outlives: bool, begins: bool) -> bool {
        Replacing::repeats_earlier(outlives, begins)
    }
}
