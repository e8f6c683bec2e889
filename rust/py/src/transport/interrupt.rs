//! Lets commands of the main process interrupt the waits of a worker process.

use pyo3::prelude::*;
use torchdata_core::link::Link;
use torchdata_core::process::board::BellRef;

pub struct Interrupt {
    pub control: Link,
    pub exception: Py<PyAny>,
    /// The link over which the worker process sends items to the main process, and the bell of the main process.
    pub output: (Link, BellRef),
}

impl Interrupt {
    /// Returns whether a command ends this epoch. If the control word is damaged, the result is true, so that the
    /// worker process looks for a command.
    #[inline]
    pub fn is_superseded(&self, epoch: u32) -> bool {
        self.control.is_superseded(epoch).unwrap_or(true)
    }

    pub fn starve(&self, epoch: u32) {
        let (link, main) = &self.output;
        link.starve(epoch, main);
    }

    pub fn error(&self, py: Python<'_>) -> PyErr {
        self.exception.bind(py).call0().map_or_else(|error| error, PyErr::from_value)
    }
}
