//! The control link of a worker, as the reader of its share sees it: orders of main end a wait, and main learns of the
//! wait.

use pyo3::prelude::*;
use torchdata_core::link::{Announcer, Probe};

/// Orders that interrupt a worker's reader.
pub struct Interrupt {
    control: Probe,
    /// The class to raise when main has ordered another epoch or the end.
    pub exception: Py<PyAny>,
    /// Tells main that this process waits for the dispatching one.
    announcer: Announcer,
}

impl Interrupt {
    pub fn new(control: Probe, exception: Py<PyAny>, announcer: Announcer) -> Self {
        Self { control, exception, announcer }
    }

    /// Returns whether a command waits.
    pub fn is_pending(&self) -> bool {
        self.control.pending()
    }

    /// Returns whether main has ordered something else than `epoch`. A damaged word says so, too: the child then finds
    /// no command.
    #[inline]
    pub fn is_superseded(&self, epoch: u32) -> bool {
        self.control.is_superseded(epoch).unwrap_or(true)
    }

    /// Tells main that this process waits.
    pub fn starve(&self, epoch: u32) {
        self.announcer.starve(epoch);
    }

    /// Tells main that this process goes on.
    pub fn go_on(&self) {
        self.announcer.go_on();
    }

    /// Returns the exception for an order.
    pub fn error(&self, py: Python<'_>) -> PyErr {
        self.exception.bind(py).call0().map_or_else(|error| error, PyErr::from_value)
    }
}
