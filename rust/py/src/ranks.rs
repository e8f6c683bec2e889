//! The meeting of ranks as a Python class: sockets come in as descriptors, waits go on without the GIL.
//!
//! A forked child has the meeting without its thread, and maybe with its lock held, so there every method refuses and
//! nothing is dropped; the facade takes the sockets from it.

use std::mem::ManuallyDrop;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::Arc;
use torchdata_core::ranks::meeting::{Meeting, Tokens};
use torchdata_core::ranks::{Answer, Fault, Verdict, WATCH};

use crate::enter::{self, Slices};

/// Why an operation never ends: what happened, the ranks to blame, and the rank that noticed.
type Blame = (&'static str, Vec<u32>, u32);

/// All ranks of a job, as this one sees it.
#[pyclass(frozen, name = "Meeting", module = "torchdata._native")]
pub struct PyMeeting {
    /// None after `close`. Waits hold on to it.
    meeting: ManuallyDrop<Mutex<Option<Arc<Meeting>>>>,
    process: u32,
}

impl Drop for PyMeeting {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: dropped here only, and `self` is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.meeting) }
        }
    }
}

fn blame(verdict: Verdict) -> Blame {
    let what = match verdict.fault {
        Fault::Absent => "absent",
        Fault::Late => "late",
        Fault::Dead => "dead",
        Fault::Silent => "silent",
        Fault::Parted => "parted",
        Fault::Left => "left",
    };
    (what, verdict.ranks, verdict.by)
}

fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Takes over a descriptor of the caller's.
fn owned(descriptor: RawFd) -> PyResult<OwnedFd> {
    if descriptor < 0 {
        return Err(PyValueError::new_err(format!("no descriptor: {descriptor}")));
    }
    // SAFETY: the caller detached it from its socket object for this call, so that nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

impl PyMeeting {
    fn new(meeting: Meeting) -> Self {
        Self { meeting: ManuallyDrop::new(Mutex::new(Some(Arc::new(meeting)))), process: std::process::id() }
    }

    fn get(&self) -> PyResult<Arc<Meeting>> {
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err("a forked child takes no part in the meeting of its parent's ranks"));
        }
        let meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        meeting.clone().ok_or_else(|| PyRuntimeError::new_err("the meeting of ranks was closed"))
    }

    /// Waits for the end of an operation, as long as the time-out and a little longer.
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
            Answer::Failed(verdict) => Err(blame(verdict)),
        })
    }
}

#[pymethods]
impl PyMeeting {
    /// Rank 0's: takes over a listening socket at which `size - 1` other ranks are to come.
    #[staticmethod]
    fn host(descriptor: RawFd, size: u32, hello: [u8; 16], welcome: [u8; 16]) -> PyResult<Self> {
        let listener = TcpListener::from(owned(descriptor)?);
        Ok(Self::new(Meeting::host(listener, size, Tokens { hello, welcome })?))
    }

    /// Another rank's: takes over a socket that is connected to rank 0. OSError if rank 0 does not answer there.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        descriptor: RawFd,
        rank: u32,
        hello: [u8; 16],
        welcome: [u8; 16],
        patience: f64,
    ) -> PyResult<Self> {
        let (socket, patience) = (TcpStream::from(owned(descriptor)?), seconds(patience)?);
        Ok(Self::new(py.detach(|| Meeting::join(socket, rank, Tokens { hello, welcome }, patience))?))
    }

    /// Waits until all ranks have come: None, or who is to blame that they have not.
    fn open(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<Blame>> {
        Ok(self.end_of(py, 0, timeout)?.err())
    }

    /// Begins to give signs of life.
    fn serve(&self) -> PyResult<()> {
        Ok(self.get()?.serve()?)
    }

    /// The least of the values that the ranks give, or who is to blame that there is none.
    fn least(&self, py: Python<'_>, value: i64, timeout: f64) -> PyResult<(Option<i64>, Option<Blame>)> {
        let meeting = self.get()?;
        meeting.serve()?;
        let operation = py.detach(|| meeting.submit(value));
        Ok(match self.end_of(py, operation, timeout)? {
            Ok(least) => (Some(least), None),
            Err(blame) => (None, Some(blame)),
        })
    }

    /// Ends the wait of another thread, if there is one; the other ranks hear that this one is at fault.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let meeting = self.get()?;
        py.detach(|| meeting.leave());
        Ok(())
    }

    /// Returns the ranks to blame that no operation ends any more, if that is so.
    fn blame(&self) -> PyResult<Option<Blame>> {
        Ok(self.get()?.verdict().map(blame))
    }

    /// The descriptors of its connections.
    fn descriptors(&self) -> PyResult<Vec<RawFd>> {
        Ok(self.get()?.descriptors())
    }

    /// Says goodbye to the other ranks, and closes all connections. More calls do nothing, as in a forked child.
    fn close(&self, py: Python<'_>) {
        if self.process == std::process::id() {
            let meeting = self.meeting.lock().unwrap_or_else(PoisonError::into_inner).take();
            py.detach(|| drop(meeting));
        }
    }

    /// Seconds for which a rank is listened for when the time is up, before it is taken for dead.
    #[classattr]
    #[pyo3(name = "WATCH")]
    fn watch() -> f64 {
        WATCH.as_secs_f64()
    }
}
