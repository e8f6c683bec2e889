//! Lets commands interrupt the waits of a worker's reader, and reports these waits to the main process.

use pyo3::prelude::*;
use torchdata_core::link::Link;
use torchdata_core::process::board::BellRef;

pub struct Interrupt {
    pub control: Link,
    /// Raised when the main process orders another epoch or a stop.
    pub exception: Py<PyAny>,
    /// The link over which the main process receives items, and the bell of the main process.
    pub output: (Link, BellRef),
}

impl Interrupt {
    /// A damaged control word counts as an order, because the worker then looks for a command and finds none.
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
