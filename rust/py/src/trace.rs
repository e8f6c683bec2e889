//! Logs of what happened when, as Python objects, and the one that this process writes.
//!
//! At most one log is written at a time in a process. Guards that were made meanwhile write into it, and so do sender
//! and receiver; if there is none, that costs them a look at a flag per item.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use torchdata_core::stats::nanoseconds;
use torchdata_core::trace::{Kind, Log, Record};

use crate::errors;

/// Shorter waits are not worth a record.
const SHORTEST: u64 = 1_000;

/// Whether there is a current log. The GIL orders all that changes it.
static ON: AtomicBool = AtomicBool::new(false);
/// The log that this process writes. Held for a moment, with the GIL: nobody forks meanwhile.
static CURRENT: Mutex<Option<Arc<Log>>> = Mutex::new(None);

/// Events and their times, in memory of one process that main reads.
#[pyclass(frozen, name = "TraceLog", module = "torchdata._native")]
pub struct PyTraceLog(pub Arc<Log>);

#[pymethods]
impl PyTraceLog {
    /// Makes a log of so many records, in memory of that name.
    #[new]
    #[pyo3(signature = (capacity, name = Log::NAME))]
    fn new(capacity: u64, name: &str) -> PyResult<Self> {
        Log::create_named(name, capacity).map(Self).map_err(errors::open)
    }

    /// Maps another process's log, to be written by this one.
    #[staticmethod]
    fn open(path: PathBuf) -> PyResult<Self> {
        Log::open(&path).map(Self).map_err(errors::open)
    }

    /// The descriptor by which another process finds it; -1 if there is none.
    fn fileno(&self) -> i32 {
        self.0.fd().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// Makes it the log that this process writes.
    fn begin(&self) {
        self.0.adopt();
        *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&self.0));
        ON.store(true, Relaxed);
    }

    /// Writes nothing more into it, in any process.
    fn stop(&self) {
        self.0.stop();
    }

    /// Names what has the number `what`.
    fn name(&self, what: u64, text: &str) {
        if self.0.is_on() {
            self.0.push_text(what, text);
        }
    }

    /// The process that writes it, how many records found no room, and the others as bytes.
    fn read<'py>(&self, py: Python<'py>) -> (u32, u64, Bound<'py, PyBytes>) {
        let (pid, left_out, bytes) = py.detach(|| self.0.read());
        (pid, left_out, PyBytes::new(py, &bytes))
    }

    /// The records from a position on as bytes, and the position behind them. Ends before the first one that is not
    /// finished, unless it is to `skip` those.
    fn read_on<'py>(&self, py: Python<'py>, position: u64, skip: bool) -> (u64, Bound<'py, PyBytes>) {
        let (next, bytes) = py.detach(|| self.0.read_on(position, skip));
        (next, PyBytes::new(py, &bytes))
    }

    /// The process that writes it, and how many records found no room.
    fn counts(&self) -> (u32, u64) {
        self.0.counts()
    }
}

/// This process writes no log any more.
#[pyfunction]
pub fn end_trace() {
    ON.store(false, Relaxed);
    drop(CURRENT.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Now, if a log is written.
#[inline]
pub fn begin() -> Option<u64> {
    if ON.load(Relaxed) { Some(nanoseconds()) } else { None }
}

#[cold]
fn write(record: &Record) {
    if let Some(log) = &*CURRENT.lock().unwrap_or_else(PoisonError::into_inner)
        && log.is_on()
    {
        log.push(record);
    }
}

/// Which loader, and the page of each peer, as they stand in records.
#[derive(Debug, Default, Clone)]
pub struct Origin {
    /// When the loader's board was made.
    pub loader: u64,
    /// By link.
    pub pages: Vec<u32>,
}

impl Origin {
    fn page(&self, link: usize) -> u64 {
        self.pages.get(link).copied().map_or(u64::from(u32::MAX), u64::from)
    }

    /// An item crossed a link: the one of that number in a stream.
    #[cold]
    pub fn crossed(&self, kind: Kind, begin: u64, link: usize, stream: u64, number: u64) {
        let (what, loader) = (self.page(link), self.loader);
        write(&Record { kind, begin, end: nanoseconds(), what, number, stream, loader });
    }

    /// A wait for a peer is over.
    #[cold]
    pub fn waited(&self, kind: Kind, begin: u64, link: usize) {
        let end = nanoseconds();
        if end - begin >= SHORTEST {
            write(&Record { kind, begin, end, what: self.page(link), number: 0, stream: 0, loader: self.loader });
        }
    }
}
