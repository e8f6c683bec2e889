//! The board of counters as a Python object: made by main, taken by each process, read by any process that may.

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

/// Counters of all processes of a loader, in memory that they share.
#[pyclass(frozen, name = "StatsBoard", module = "torchdata._native")]
pub struct PyStatsBoard(pub Arc<Board>);

impl PyStatsBoard {
    /// A page.
    pub fn page(&self, index: usize) -> PyResult<PageRef> {
        let pages = self.0.config().pages;
        self.0.page(index).ok_or_else(|| PyIndexError::new_err(format!("there are {pages} pages, not {index}")))
    }

    /// A page that this process may write.
    fn own_page(&self, index: usize) -> PyResult<PageRef> {
        if self.0.is_of_this_process() {
            return self.page(index);
        }
        Err(PyRuntimeError::new_err(
            "these counters are not to be written by this process: it observes them, or was forked from the one that counts",
        ))
    }

    /// A pipe that `bind` has named, of a page that this process may write.
    pub fn pipe(&self, page: usize, index: usize) -> PyResult<PipeRef> {
        self.own_page(page)?.pipe_at(index).ok_or_else(|| PyIndexError::new_err("a page has no room for so many pipes"))
    }

    /// The ends of links from flow `first` on.
    pub fn flows(&self, page: usize, first: usize, peers: &[u32], sends: bool) -> PyResult<Vec<FlowRef>> {
        let page = self.own_page(page)?;
        let flows = peers.iter().enumerate().map(|(index, &peer)| page.flow(first + index, peer, sends));
        flows.collect::<Option<_>>().ok_or_else(|| PyIndexError::new_err("a page has no room for so many links"))
    }
}

/// (token, name, where its function stands, the pipe that reads it, flags, capacity)
type Pipe<'py> = (Bound<'py, IterationToken>, String, String, Option<usize>, u32, u64);

#[pymethods]
impl PyStatsBoard {
    /// Makes a board with pages for so many processes, each with so many ends of links and pipes.
    #[new]
    fn new(pages: u32, flows: u32, pipes: u32, full: bool) -> PyResult<Self> {
        Board::create(BoardConfig { pages, flows, pipes }, full).map(Self).map_err(errors::open)
    }

    /// Maps the board behind a descriptor, which is closed.
    #[staticmethod]
    fn attach(fd: i32) -> PyResult<Self> {
        Board::attach(take_fd(fd)?).map(Self).map_err(errors::open)
    }

    /// Maps a board to read it.
    #[staticmethod]
    fn observe(path: PathBuf) -> PyResult<Self> {
        Board::observe(&path).map(Self).map_err(errors::open)
    }

    /// The descriptor behind the board, to be passed to another process; -1 if there is none.
    fn fileno(&self) -> i32 {
        self.0.fd().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// Closes the descriptor: nobody can find the board any more who has not yet.
    fn close_descriptor(&self) {
        self.0.close();
    }

    /// The board as this process may write it: itself, unless this is a forked child, which maps it anew.
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

    /// Whether the time of each pipe is taken.
    #[getter]
    fn full(&self) -> bool {
        self.0.is_full()
    }

    /// The process that made it, and when, in nanoseconds of the monotonic clock.
    fn made(&self) -> (u32, u64) {
        self.0.made()
    }

    /// Takes a page for this process; roles: 1 main, 2 worker, 3 the dispatching process.
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

    /// Counts the pipes of this process's graphs. `end` is the index of the one that is read now.
    fn bind(&self, page: usize, pipes: Vec<Pipe<'_>>, end: usize) -> PyResult<()> {
        let own = self.own_page(page)?;
        let count = pipes.len();
        for (index, (token, label, location, reader, flags, capacity)) in pipes.into_iter().enumerate() {
            let place = own.pipe(index, reader, flags, capacity, [&label, &location]);
            if let Some(place) = place {
                token.get().bind(place, index == end, page == 0);
            }
        }
        own.set_pipes(count);
        Ok(())
    }

    /// Counts items of a pipe that `bind` has named. One call took these nanoseconds, and represents `weight` calls.
    /// Does nothing in a process that was forked from the one that counts.
    fn add_work(&self, page: usize, pipe: usize, items: u64, nanoseconds: u64, weight: u64) -> PyResult<()> {
        if self.0.is_of_this_process() {
            add_work(&self.pipe(page, pipe)?, items, nanoseconds, weight);
        }
        Ok(())
    }

    /// An epoch begins in this process.
    fn begin_span(&self, page: usize, epoch: u32) -> PyResult<()> {
        self.own_page(page)?.begin_span(Some(epoch));
        Ok(())
    }

    /// The epoch is over in this process, if one was under way.
    fn end_span(&self, page: usize) -> PyResult<()> {
        let page = self.own_page(page)?;
        page.end_first();
        page.end_span();
        Ok(())
    }

    /// Says how this process is asked for its stack: by the signal, upon which it writes to the descriptor. 0: not at
    /// all.
    fn set_stack(&self, page: usize, signal: u32, descriptor: u32) -> PyResult<()> {
        self.own_page(page)?.set_stack(signal, descriptor);
        Ok(())
    }

    /// A copy of what the process of that page has counted, for the board of another machine.
    fn carry_out(&self, page: usize) -> PyResult<Vec<u8>> {
        Ok(self.page(page)?.carry_out())
    }

    /// Writes such a copy onto a page: who takes it goes on with these counts.
    fn take_in(&self, page: usize, carried: &[u8]) -> PyResult<()> {
        self.own_page(page)?.take_in(carried).map_err(errors::corrupted)
    }

    /// Shows what a process of another machine has counted, and nanoseconds that its threads ran, that they were ready
    /// to, and that it has lived. To be called by main.
    fn hear(&self, page: usize, carried: &[u8], times: [u64; 3]) -> PyResult<()> {
        self.own_page(page)?.hear(carried, times).map_err(errors::corrupted)
    }

    /// Says where a process of another machine is, which is up. To be called by main.
    fn set_place(&self, page: usize, place: &str) -> PyResult<()> {
        self.own_page(page)?.set_place(place);
        Ok(())
    }

    /// Notes that a process of another machine has ended. To be called by main.
    fn set_gone(&self, page: usize) -> PyResult<()> {
        self.own_page(page)?.set_gone();
        Ok(())
    }

    /// Counts a frame that has come from a process of another machine. To be called by main.
    fn count_frame(&self, page: usize, bytes: u64, is_full: bool) -> PyResult<()> {
        self.own_page(page)?.count_frame(bytes, is_full);
        Ok(())
    }

    /// Returns the counts of all processes: a dictionary each. Times are in nanoseconds. Damaged pages are left out.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        plain(py, &Value::List(self.0.read()))
    }

    /// Says which page cannot be that of a process, and why; None if there is none.
    fn damage(&self) -> Option<String> {
        self.0.damage().map(|damage| damage.to_string())
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
