//! Processes whose death the reader of their links must notice.

use pyo3::prelude::*;
use torchdata_core::error::OpenError;
use torchdata_core::process::liveness::Watch;

/// A process that may die.
pub struct Mortal(Option<Watch>);

impl Mortal {
    /// One that is there, or has not been reaped yet.
    pub fn watch(pid: i32) -> Result<Self, OpenError> {
        Watch::open(pid).map(|watch| Self(Some(watch)))
    }

    /// One that may be gone already.
    pub fn of(pid: i32) -> Self {
        Self(Watch::open(pid).ok())
    }

    pub fn has_died(&self) -> bool {
        self.0.as_ref().is_none_or(Watch::exited)
    }

    /// Whether any of these has died.
    pub fn any_died(all: &[(usize, Self)]) -> bool {
        let watches = || all.iter().map(|(_, process)| process.0.as_ref());
        watches().any(|watch| watch.is_none()) || Watch::any_exited(watches().flatten())
    }
}

/// Who says what becomes of the dead (see `Collector.watch_and_replace`).
pub struct Replacing {
    pub on_death: Py<PyAny>,
    pub on_replace: Py<PyAny>,
}
