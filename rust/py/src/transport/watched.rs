//! Processes whose death the reader of their links must notice.
//!
//! Runs in the thread that reads. A death is a fault, or a case for others, who take the places of the dead (see
//! `replacing.rs`).

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use torchdata_core::error::OpenError;
use torchdata_core::process::liveness::Watch;

use crate::descriptors::OwnedDescriptor;

/// What tells of the end of a process: its number, or a descriptor that becomes readable then.
#[derive(FromPyObject)]
pub enum Sign<'py> {
    Number(i32),
    Descriptor(Bound<'py, OwnedDescriptor>),
}

impl Sign<'_> {
    fn watch(self) -> Result<Watch, OpenError> {
        match self {
            Self::Number(pid) => Watch::open(pid),
            Self::Descriptor(descriptor) => descriptor.get().copy().and_then(Watch::by),
        }
    }
}

/// A process that may die.
struct Mortal(Option<Watch>);

impl Mortal {
    /// Watches a process that is there, or has not been reaped yet.
    fn watch(sign: Sign<'_>) -> Result<Self, OpenError> {
        sign.watch().map(|watch| Self(Some(watch)))
    }

    /// Watches a process that may be gone already.
    fn of(sign: Sign<'_>) -> Self {
        Self(sign.watch().ok())
    }

    fn has_died(&self) -> bool {
        self.0.as_ref().is_none_or(Watch::exited)
    }
}

/// The callbacks that decide who takes the places of the dead (see `Collector.watch_and_replace`).
pub struct Replacing {
    pub on_death: Py<PyAny>,
    pub on_replace: Py<PyAny>,
}

/// The processes that are watched while the reader waits. A worker watches none: it ends with main, and main tells it
/// of deaths.
#[derive(Default)]
pub struct DeathWatch {
    /// With the index by which the callbacks know each.
    processes: Vec<(usize, Mortal)>,
    /// The one that was found to have ended.
    dead: Option<usize>,
    /// Called with the index of a process that has ended; raises.
    on_exit: Option<Py<PyAny>>,
    /// Called instead of it if others take the places of the dead.
    replacing: Option<Replacing>,
}

impl DeathWatch {
    /// Watches processes, whose death is a fault.
    pub fn watch(&mut self, processes: Vec<(usize, Sign<'_>)>, on_exit: Py<PyAny>) -> Result<(), OpenError> {
        self.processes = processes
            .into_iter()
            .map(|(index, sign)| Mortal::watch(sign).map(|process| (index, process)))
            .collect::<Result<_, _>>()?;
        self.on_exit = Some(on_exit);
        Ok(())
    }

    /// Watches processes, which are replaced when they die.
    pub fn watch_and_replace(&mut self, processes: Vec<(usize, Sign<'_>)>, replacing: Replacing) {
        self.processes = processes.into_iter().map(|(index, sign)| (index, Mortal::of(sign))).collect();
        self.replacing = Some(replacing);
    }

    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Returns whether any process has died: one system call, if they are watched by descriptors.
    pub fn any_died(&self) -> bool {
        let watches = || self.processes.iter().map(|(_, process)| process.0.as_ref());
        watches().any(|watch| watch.is_none()) || Watch::any_exited(watches().flatten())
    }

    /// Notes which process has died.
    pub fn note_death(&mut self) {
        self.dead = self.processes.iter().find(|(_, process)| process.has_died()).map(|&(index, _)| index);
    }

    /// Returns the callbacks, if the dead are replaced.
    pub fn replacing(&self, py: Python<'_>) -> Option<Replacing> {
        let Replacing { on_death, on_replace } = self.replacing.as_ref()?;
        Some(Replacing { on_death: on_death.clone_ref(py), on_replace: on_replace.clone_ref(py) })
    }

    pub fn replaces(&self) -> bool {
        self.replacing.is_some()
    }

    /// Returns the error for the death that was noted.
    pub fn error(&self, py: Python<'_>) -> PyErr {
        let raised = match (&self.on_exit, self.dead) {
            (Some(on_exit), Some(index)) => on_exit.call1(py, (index,)),
            _ => Ok(py.None()),
        };
        raised.err().unwrap_or_else(|| PyRuntimeError::new_err("a process that the loader depends on has died"))
    }

    /// Returns the indices of all that have died, `also` among them, in order.
    pub fn all_dead(&self, also: Vec<usize>) -> Vec<usize> {
        let mut dead = also;
        dead.extend(self.processes.iter().filter(|(_, process)| process.has_died()).map(|&(index, _)| index));
        dead.sort_unstable();
        dead.dedup();
        dead
    }

    /// Watches another process in the place of one.
    pub fn succeed(&mut self, index: usize, sign: Sign<'_>) {
        self.processes.retain(|&(other, _)| other != index);
        self.processes.push((index, Mortal::of(sign)));
    }

    /// Watches the dead that were not replaced no more: they had done their part.
    pub fn forget(&mut self, dead: &[usize]) {
        self.processes.retain(|(index, process)| !(dead.contains(index) && process.has_died()));
        self.dead = None;
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.on_exit)?;
        visit.call(self.replacing.as_ref().map(|replacing| &replacing.on_death))?;
        visit.call(self.replacing.as_ref().map(|replacing| &replacing.on_replace))
    }

    /// Gives the callbacks away, to be dropped.
    pub fn clear(&mut self) -> (Option<Py<PyAny>>, Option<Replacing>) {
        (self.on_exit.take(), self.replacing.take())
    }
}
