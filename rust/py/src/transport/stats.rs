//! Provides the Python class for the board of counters in shared memory.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use torchdata_core::stats::{Board, BoardConfig, FlowRef, PageRef, PipeRef, Role, Value};

use crate::descriptors::{duplicate, take_fd};
use crate::errors;
use crate::pipes::clocking;
use crate::pipes::metering::add_work;
use crate::pipes::token::IterationToken;
use crate::pipes::turn::SharedIterator;

#[pyclass(frozen, name = "StatsBoard", module = "torchdata._native")]
pub struct PyStatsBoard(pub Arc<Board>);

impl PyStatsBoard {
    pub fn page(&self, index: usize) -> PyResult<PageRef> {
        let pages = self.0.config.pages;
        self.0.page(index).ok_or_else(|| PyIndexError::new_err(format!("there are {pages} pages, but no page {index}")))
    }

    fn own_page(&self, index: usize) -> PyResult<PageRef> {
        if self.0.is_of_this_process() {
            return self.page(index);
        }
        Err(PyRuntimeError::new_err(
            "this process must not write these counters: it only observes them, or was forked from the process that counts",
        ))
    }

    pub fn pipe(&self, page: usize, index: usize) -> PyResult<PipeRef> {
        self.own_page(page)?.pipe_at(index).ok_or_else(|| PyIndexError::new_err("a page has no space for more pipes"))
    }

    /// Returns the counters of this process's links. Link i uses the counters with the index `first` + i.
    pub fn flows(&self, page: usize, first: usize, peers: &[u32], sends: bool) -> PyResult<Vec<FlowRef>> {
        let page = self.own_page(page)?;
        let flows = peers.iter().enumerate().map(|(index, &peer)| page.flow(first + index, peer, sends));
        flows.collect::<Option<_>>().ok_or_else(|| PyIndexError::new_err("a page has no space for more links"))
    }
}

/// A pipe, as a tuple of its token, its name, the location of its user function, the index of the pipe that reads this
/// pipe, its flags, and its capacity.
type Pipe<'py> = (Bound<'py, IterationToken>, String, String, Option<usize>, u32, u64);

#[pymethods]
impl PyStatsBoard {
    /// Creates shared memory (a board) with counters for up to `pages` processes. Each process can count up to `flows`
    /// ends of links and `pipes` pipes.
    #[new]
    fn new(pages: u32, flows: u32, pipes: u32, full: bool) -> PyResult<Self> {
        Board::create(BoardConfig { pages, flows, pipes }, full).map(Self).map_err(errors::open)
    }

    #[staticmethod]
    fn attach(fd: i32) -> PyResult<Self> {
        Board::attach(take_fd(fd)?).map(Self).map_err(errors::open)
    }

    #[staticmethod]
    fn observe(path: PathBuf) -> PyResult<Self> {
        Board::observe(&path).map(Self).map_err(errors::open)
    }

    fn fileno(&self) -> i32 {
        self.0.fd().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// Closes the descriptor of the shared memory. Other programs can no longer find the board after this call.
    fn close_descriptor(&self) {
        self.0.close();
    }

    /// Returns a board that this process may write. In a forked child, the returned board uses a new mapping of the
    /// shared memory.
    fn here(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let board = slf.get();
        match board.0.fd() {
            Some(fd) if !board.0.is_of_this_process() => {
                let attached = Board::attach(duplicate(fd.as_raw_fd())?).map_err(errors::open)?;
                Bound::new(slf.py(), Self(attached))
            }
            _ => Ok(slf),
        }
    }

    #[getter]
    fn full(&self) -> bool {
        self.0.is_full()
    }

    fn want_large_snapshots(&self) {
        if self.0.is_of_this_process() {
            self.0.want_large_snapshots();
        }
    }

    fn wants_large_snapshots(&self) -> bool {
        self.0.wants_large_snapshots()
    }

    fn oversized(&self) -> u64 {
        self.0.oversized()
    }

    fn set_oversized(&self, page: usize, bytes: u64) -> PyResult<()> {
        self.own_page(page).map(|page| page.set_oversized(bytes))
    }

    fn made(&self) -> (u32, u64) {
        self.0.made()
    }

    /// Assigns the page with the index `page` to this process. The roles are 1 (main process), 2 (worker process) and 3
    /// (dispatching process).
    fn adopt(&self, page: usize, role: u32, number: u32) -> PyResult<()> {
        let role = match role {
            1 => Role::Main,
            2 => Role::Worker,
            _ => Role::Dispatcher,
        };
        self.own_page(page)?.adopt(role, number);
        clocking::begin();
        Ok(())
    }

    /// Registers the pipes of this process. `end` is the index of the last pipe.
    fn bind(&self, page: usize, pipes: Vec<Pipe<'_>>, end: usize) -> PyResult<()> {
        let own = self.own_page(page)?;
        let count = pipes.len();
        for (index, (token, label, location, reader, flags, capacity)) in pipes.into_iter().enumerate() {
            let slot = own.pipe(index, reader, flags, capacity, [&label, &location]);
            if let Some(slot) = slot {
                token.get().bind(token.py(), slot, index == end, page == 0);
            }
        }
        own.set_pipes(count);
        Ok(())
    }

    /// Adds items to the statistics record of a pipe. Processing all items took about `weight` times `nanoseconds`,
    /// because only one of `weight` calls was measured.
    fn add_work(&self, page: usize, pipe: usize, items: u64, nanoseconds: u64, weight: u64) -> PyResult<()> {
        if self.0.is_of_this_process() {
            add_work(&self.pipe(page, pipe)?, items, nanoseconds, weight);
        }
        Ok(())
    }

    /// From the next epoch on, adds the items of `iterator`, and the time that they take, to the statistics of a pipe.
    fn count_items(&self, iterator: &Bound<'_, SharedIterator>, page: usize, pipe: usize) -> PyResult<()> {
        iterator.get().meter.count_into(iterator.py(), self.pipe(page, pipe)?);
        Ok(())
    }

    fn begin_span(&self, page: usize, epoch: u32) -> PyResult<()> {
        self.own_page(page).map(|page| page.begin_span(Some(epoch)))
    }

    fn end_span(&self, page: usize) -> PyResult<()> {
        let page = self.own_page(page)?;
        page.end_first();
        page.end_span();
        Ok(())
    }

    fn set_stack(&self, page: usize, signal: u32, descriptor: u32) -> PyResult<()> {
        self.own_page(page).map(|page| page.set_stack(signal, descriptor))
    }

    fn carry_out(&self, page: usize) -> PyResult<Vec<u8>> {
        Ok(self.page(page)?.carry_out())
    }

    fn take_in(&self, page: usize, carried: &[u8]) -> PyResult<()> {
        self.own_page(page)?.take_in(carried).map_err(errors::corrupted)
    }

    fn receive(&self, page: usize, carried: &[u8], times: [u64; 3]) -> PyResult<()> {
        self.own_page(page)?.receive(carried, times).map_err(errors::corrupted)
    }

    fn set_machine(&self, page: usize, machine: &str) -> PyResult<()> {
        self.own_page(page).map(|page| page.set_machine(machine))
    }

    fn set_exited(&self, page: usize) -> PyResult<()> {
        self.own_page(page).map(|page| page.set_exited())
    }

    fn count_carried(&self, page: usize, bytes: u64) -> PyResult<()> {
        self.own_page(page).map(|page| page.count_carried(bytes))
    }

    /// Returns the counters as one dictionary per process. Times are in nanoseconds, and damaged pages are skipped.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        plain(py, &Value::List(self.0.read()))
    }

    fn damage(&self) -> Option<String> {
        self.0.damage()
    }
}

fn plain<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Nothing => py.None().into_bound(py),
        Value::Flag(one) => one.into_bound_py_any(py)?,
        Value::Number(one) => one.into_bound_py_any(py)?,
        Value::Estimate(one) => one.into_bound_py_any(py)?,
        Value::Text(one) => one.into_bound_py_any(py)?,
        Value::List(list) => {
            PyList::new(py, list.iter().map(|one| plain(py, one)).collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Value::Fields(fields) => {
            let dict = PyDict::new(py);
            fields.iter().try_for_each(|(name, one)| dict.set_item(name, plain(py, one)?))?;
            dict.into_any()
        }
    })
}
