//! Detects that processes have exited, in the thread that reads their items.
//!
//! When a process has exited, the reader raises an error or starts a replacement process (`replacing.rs`).

use pyo3::exceptions::PyRuntimeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use torchdata_core::error::OpenError;
use torchdata_core::process::liveness::Watch;

use crate::descriptors::OwnedDescriptor;

/// Identifies a process to watch, either by its id or by a descriptor that becomes readable when the process exits.
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

/// The watch of a process, or None if the process had already exited when the watch began.
type WatchedProcess = Option<Watch>;

fn has_exited(process: &WatchedProcess) -> bool {
    process.as_ref().is_none_or(Watch::exited)
}

pub struct Replacing {
    pub on_loss: Py<PyAny>,
    pub on_replace: Py<PyAny>,
}

/// The processes that a reader watches. In a worker process, the list of watched processes is empty, because a worker
/// exits with the main process.
#[derive(Default)]
pub struct ExitWatch {
    pub processes: Vec<(usize, WatchedProcess)>,
    exited: Option<usize>,
    /// A callback that gets the index of an exited process, and must raise an exception.
    on_exit: Option<Py<PyAny>>,
    pub replacing: Option<Replacing>,
}

impl ExitWatch {
    pub fn watch(&mut self, processes: Vec<(usize, Sign<'_>)>, on_exit: Py<PyAny>) -> Result<(), OpenError> {
        self.processes = processes
            .into_iter()
            .map(|(index, sign)| sign.watch().map(|watch| (index, Some(watch))))
            .collect::<Result<_, _>>()?;
        self.on_exit = Some(on_exit);
        Ok(())
    }

    pub fn watch_and_replace(&mut self, processes: Vec<(usize, Sign<'_>)>, replacing: Replacing) {
        self.processes = processes.into_iter().map(|(index, sign)| (index, sign.watch().ok())).collect();
        self.replacing = Some(replacing);
    }

    /// If all processes have descriptors, this method makes only one system call.
    pub fn any_exit(&self) -> bool {
        let watches = || self.processes.iter().map(|(_, process)| process.as_ref());
        watches().any(|watch| watch.is_none()) || Watch::any_exited(watches().flatten())
    }

    pub fn note_exit(&mut self) {
        self.exited = self.processes.iter().find(|(_, process)| has_exited(process)).map(|&(index, _)| index);
    }

    pub fn replacing(&self, py: Python<'_>) -> Option<Replacing> {
        let Replacing { on_loss, on_replace } = self.replacing.as_ref()?;
        Some(Replacing { on_loss: on_loss.clone_ref(py), on_replace: on_replace.clone_ref(py) })
    }

    pub fn error(&self, py: Python<'_>) -> PyErr {
        let raised = match (&self.on_exit, self.exited) {
            (Some(on_exit), Some(index)) => on_exit.call1(py, (index,)),
            _ => Ok(py.None()),
        };
        raised.err().unwrap_or_else(|| PyRuntimeError::new_err("a process that the loader depends on has exited"))
    }

    pub fn all_exited(&self, also: Vec<usize>) -> Vec<usize> {
        let mut exited = also;
        exited.extend(self.processes.iter().filter(|(_, process)| has_exited(process)).map(|&(index, _)| index));
        exited.sort_unstable();
        exited.dedup();
        exited
    }

    pub fn succeed(&mut self, index: usize, sign: Sign<'_>) {
        self.processes.retain(|&(other, _)| other != index);
        self.processes.push((index, sign.watch().ok()));
    }

    pub fn forget(&mut self, exited: &[usize]) {
        self.processes.retain(|(index, process)| !(exited.contains(index) && has_exited(process)));
        self.exited = None;
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.on_exit)?;
        visit.call(self.replacing.as_ref().map(|replacing| &replacing.on_loss))?;
        visit.call(self.replacing.as_ref().map(|replacing| &replacing.on_replace))
    }

    pub fn clear(&mut self) -> (Option<Py<PyAny>>, Option<Replacing>) {
        (self.on_exit.take(), self.replacing.take())
    }
}
