//! Decisions of the protocol that Python carries out: the obedience of a child, the replacing of children by main, and
//! the functions that those who take places meet.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use torchdata_core::protocol::{
    Acknowledged, BETWEEN, Calls, Command, Obedience, Period, Replacing, Step, TRIES, UNTOLD,
};

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

/// The functions that main has had applied to the graphs of all children.
#[pyclass(frozen, name = "Calls", module = "torchdata._native")]
pub struct PyCalls {
    calls: Mutex<Calls>,
    children: usize,
}

impl PyCalls {
    fn with<T>(&self, child: usize, look: impl FnOnce(&mut Calls) -> T) -> PyResult<T> {
        if child >= self.children {
            return Err(PyIndexError::new_err(format!("there are {} children", self.children)));
        }
        Ok(look(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn of_all<T>(&self, look: impl FnOnce(&mut Calls) -> T) -> T {
        look(&mut self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl PyCalls {
    /// The place of one who runs no epoch, behind all items.
    #[classattr]
    const BETWEEN: u64 = BETWEEN;
    /// A place that cannot be told.
    #[classattr]
    const UNTOLD: u64 = UNTOLD;

    #[new]
    fn new(children: usize) -> Self {
        Self { calls: Mutex::new(Calls::new(children)), children }
    }

    /// Notes that an epoch begins, and whether the one before may be run again.
    fn begin(&self, again: bool) {
        self.of_all(|calls| calls.begin(again));
    }

    /// Notes a function that is about to be sent, and returns its number.
    fn note(&self) -> u64 {
        self.of_all(Calls::note)
    }

    /// Notes that a child is told of a function.
    fn tell(&self, number: u64, child: usize) -> PyResult<()> {
        self.with(child, |calls| calls.tell(number, child))
    }

    /// Notes that a child is not wanted any more in this epoch.
    fn rest(&self, number: u64, child: usize) -> PyResult<()> {
        self.with(child, |calls| calls.rest(number, child))
    }

    /// The functions of which a child was told, and of which it is not known where it met them.
    fn unsettled(&self, child: usize) -> PyResult<Vec<u64>> {
        self.with(child, |calls| calls.unsettled(child))
    }

    /// Notes that a child has acknowledged a function behind so many items.
    fn settle(&self, number: u64, child: usize, place: u64) -> PyResult<()> {
        self.with(child, |calls| calls.settle(number, child, place))
    }

    /// Notes of a worker that has ended that it met the rest behind so many items.
    fn settle_behind(&self, child: usize, received: u64) -> PyResult<()> {
        self.with(child, |calls| calls.settle_behind(child, received))
    }

    /// Whether it is known where a child had come with each function of an epoch that may be run again.
    fn is_placed(&self, child: usize) -> PyResult<bool> {
        self.with(child, |calls| calls.is_placed(child))
    }

    /// The functions that one who takes the place of a child applies before anything else.
    fn ahead(&self, child: usize, runs: bool, repeats: bool) -> PyResult<Vec<u64>> {
        self.with(child, |calls| calls.ahead(child, runs, repeats))
    }

    /// The functions that it meets in the epoch that runs, or in the one before: behind how many items, and which.
    fn within(&self, child: usize, earlier: bool) -> PyResult<Vec<(u64, u64)>> {
        let period = if earlier { Period::Earlier } else { Period::Now };
        self.with(child, |calls| calls.within(child, period))
    }
}
