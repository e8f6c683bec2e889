//! Provides the Python classes for links and for bells, which wake up waiting processes.

use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use torchdata_core::link::{Link, LinkConfig};
use torchdata_core::process::board::{BellBoard, BellRef};
use torchdata_core::process::inherited::{self, Mapping};

use super::stats::PyStatsBoard;
use crate::descriptors::take_fd;
use crate::errors;

pub fn bell(board: &Bound<'_, PyBellBoard>, index: usize) -> PyResult<BellRef> {
    let bells = &board.get().0;
    bells.bell(index).ok_or_else(|| PyIndexError::new_err(format!("there are {} bells, not {index}", bells.len())))
}

#[pyclass(frozen, name = "Link", module = "torchdata._native")]
pub struct PyLink(pub Link);

#[pymethods]
impl PyLink {
    #[new]
    #[pyo3(signature = (memory_budget, ring_capacity = 262_144))]
    fn new(memory_budget: u64, ring_capacity: u64) -> PyResult<Self> {
        // An item with the maximum number of buffers does not fit into a smaller ring.
        let ring_capacity = ring_capacity.max(64 << 10);
        let config = LinkConfig { ring_capacity, arena_capacity: memory_budget, ..LinkConfig::default() };
        Link::create(config).map(Self).map_err(errors::open)
    }

    /// Maps a link that another process has created, and closes the descriptor `fd`.
    #[staticmethod]
    fn attach(fd: i32) -> PyResult<Self> {
        Link::attach(take_fd(fd)?).map(Self).map_err(errors::open)
    }

    fn fileno(&self) -> i32 {
        self.0.region().fileno()
    }

    fn close_descriptor(&self) {
        self.0.region().close();
    }

    fn has_consumer(&self) -> bool {
        self.0.has_consumer()
    }

    fn sent(&self) -> (u64, u64) {
        self.0.sent()
    }
}

#[pyclass(frozen, name = "BellBoard", module = "torchdata._native")]
pub struct PyBellBoard(pub Arc<BellBoard>);

#[pymethods]
impl PyBellBoard {
    #[new]
    fn new(count: usize) -> PyResult<Self> {
        BellBoard::create(count).map(Self).map_err(errors::open)
    }

    #[staticmethod]
    fn attach(fd: i32) -> PyResult<Self> {
        BellBoard::attach(take_fd(fd)?).map(Self).map_err(errors::open)
    }

    fn fileno(&self) -> i32 {
        self.0.region.fileno()
    }

    fn close_descriptor(&self) {
        self.0.region.close();
    }
}

/// Unmaps the shared memory that a forked child without threads has inherited. The memory of the objects that are
/// passed as arguments, and memory that is in use, stays mapped.
#[pyfunction]
#[pyo3(signature = (links, bells, stats = None))]
pub fn drop_inherited(
    links: Vec<Bound<'_, PyLink>>,
    bells: &Bound<'_, PyBellBoard>,
    stats: Option<&Bound<'_, PyStatsBoard>>,
) {
    let mut own: Vec<&Mapping> = links.iter().map(|link| &link.get().0.region().mapping).collect();
    own.push(&bells.get().0.region.mapping);
    own.extend(stats.map(|board| &board.get().0.region.mapping));
    inherited::drop_all_but(&own);
}
