//! Provides the Python class `Meeting`, which connects the ranks of a distributed program by sockets.
//!
//! In a forked child, all methods raise an error, because the background thread exists only in the parent. The child
//! also never drops the connections, because dropping would require a lock that may never be released in the child.

use std::mem::ManuallyDrop;
use std::net::{TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::Arc;
use torchdata_core::ranks::meeting::{Meeting, Tokens};
use torchdata_core::ranks::{Answer, Verdict};

use crate::descriptors::take_fd;
use crate::enter::{self, Slices};

/// A failure, as a tuple of the reason, the ranks that caused the failure, and the rank that has detected the failure.
type Blame = (String, Vec<u32>, u32);

#[pyclass(frozen, name = "Meeting", module = "torchdata._native")]
pub struct PyMeeting {
    meeting: ManuallyDrop<Mutex<Option<Arc<Meeting>>>>,
    process: u32,
}

impl Drop for PyMeeting {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: the field is dropped only here, and `self` is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.meeting) }
        }
    }
}

fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|error| PyValueError::new_err(error.to_string()))
}

impl PyMeeting {
    fn new(meeting: Meeting) -> Self {
        Self { meeting: ManuallyDrop::new(Mutex::new(Some(Arc::new(meeting)))), process: std::process::id() }
    }

    fn get(&self) -> PyResult<Arc<Meeting>> {
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "a forked child cannot take part in the meeting of its parent's ranks",
            ));
        }
        let meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        meeting.clone().ok_or_else(|| PyRuntimeError::new_err("the meeting of ranks was closed"))
    }

    /// Returns the result of an operation. After a timeout, also waits until the hub has decided which ranks are at
    /// fault.
    fn end_of(&self, py: Python<'_>, operation: u64, timeout: f64) -> PyResult<Result<i64, Blame>> {
        let meeting = self.get()?;
        let mut answer = None;
        let mut wait = |limit| {
            let ended = |slice| {
                answer = meeting.wait(operation, slice);
                answer.is_some()
            };
            enter::wait(py, limit, Slices::LONG, ended, |_| Ok(false))
        };
        if !wait(Some(seconds(timeout)?))? {
            py.detach(|| meeting.give_up(operation));
            wait(None)?;
        }
        Ok(match answer.expect("a wait without a limit ends with an answer") {
            Answer::Least(value) => Ok(value),
            Answer::Failed(Verdict { fault, ranks, by }) => Err((format!("{fault:?}").to_lowercase(), ranks, by)),
        })
    }
}

#[pymethods]
impl PyMeeting {
    /// Creates the `Meeting` of rank 0. All higher ranks connect through the listening socket `descriptor`.
    #[staticmethod]
    fn host(descriptor: RawFd, size: u32, hello: [u8; 16], welcome: [u8; 16]) -> PyResult<Self> {
        let listener = TcpListener::from(take_fd(descriptor)?);
        Ok(Self::new(Meeting::host(listener, size, Tokens { hello, welcome })?))
    }

    #[staticmethod]
    fn join(
        py: Python<'_>,
        descriptor: RawFd,
        rank: u32,
        hello: [u8; 16],
        welcome: [u8; 16],
        patience: f64,
    ) -> PyResult<Self> {
        let (socket, patience) = (TcpStream::from(take_fd(descriptor)?), seconds(patience)?);
        Ok(Self::new(py.detach(|| Meeting::join(socket, rank, Tokens { hello, welcome }, patience))?))
    }

    /// Waits until all ranks are connected. Returns None when all ranks are connected, or the reason for the failure
    /// and the ranks at fault.
    fn open(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<Blame>> {
        Ok(self.end_of(py, 0, timeout)?.err())
    }

    fn serve(&self) -> PyResult<()> {
        Ok(self.get()?.serve()?)
    }

    fn least(&self, py: Python<'_>, value: i64, timeout: f64) -> PyResult<(Option<i64>, Option<Blame>)> {
        let meeting = self.get()?;
        meeting.serve()?;
        let operation = py.detach(|| meeting.submit(value));
        Ok(match self.end_of(py, operation, timeout)? {
            Ok(least) => (Some(least), None),
            Err(blame) => (None, Some(blame)),
        })
    }

    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let meeting = self.get()?;
        py.detach(|| meeting.leave());
        Ok(())
    }

    fn descriptors(&self) -> PyResult<Vec<RawFd>> {
        Ok(self.get()?.descriptors())
    }

    fn close(&self, py: Python<'_>) {
        if self.process == std::process::id() {
            let meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner).take();
            py.detach(|| drop(meeting));
        }
    }

    /// The number of seconds without a message after which a rank is regarded as silent.
    #[classattr]
    const WATCH: f64 = torchdata_core::ranks::WATCH.as_secs_f64();
}
