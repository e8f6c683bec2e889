//! Ensures that one thread at a time uses the [`Reader`], and only for the current epoch.
//!
//! Other threads and signal handlers set flags to stop or pause the reader.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use torchdata_core::link::consumer::Consumer;
use torchdata_core::process::board::BellRef;
use torchdata_core::process::watching::this_thread;
use torchdata_core::protocol::{Account, Stream};

use super::owning::OwningProcess;
use super::reader::{Reader, Signs};
use crate::enter;
use crate::gil_cell::{GilCell, GilNumber};

pub struct Access {
    /// The reader, or None while a thread uses the reader.
    reader: GilCell<Option<Box<Reader>>>,
    /// The id of the thread that uses the reader, or 0.
    holder: GilNumber,
    pub signs: Signs,
    /// Whether an iteration begins at the request for its first item, instead of at the start of the epoch. `on_demand`
    /// is true in a worker process that reads dispatched items.
    on_demand: bool,
    /// The process that created the reader. A forked child must not take items of its parent.
    pub owner: OwningProcess,
}

pub struct Held<'a, 'py> {
    access: &'a Access,
    py: Python<'py>,
    reader: Option<Box<Reader>>,
}

impl Drop for Held<'_, '_> {
    fn drop(&mut self) {
        self.access.holder.store(0);
        self.access.reader.with(self.py, |reader| *reader = self.reader.take());
    }
}

impl Deref for Held<'_, '_> {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        self.reader.as_deref().expect("only `drop` removes the reader")
    }
}

impl DerefMut for Held<'_, '_> {
    fn deref_mut(&mut self) -> &mut Reader {
        self.reader.as_deref_mut().expect("only `drop` removes the reader")
    }
}

pub struct Start {
    pub accounts: Vec<Account>,
    pub turn: Option<usize>,
    pub passed: u32,
}

impl Access {
    pub fn new(reader: Reader, own: BellRef, on_demand: bool) -> Self {
        Self {
            reader: GilCell::new(Some(Box::new(reader))),
            holder: GilNumber::new(0),
            signs: Signs::new(own),
            on_demand,
            owner: OwningProcess::this(),
        }
    }

    /// Returns the number of the epoch, and the number of the iteration that a new iterator reads. The iteration number
    /// is 0 if `on_demand` is true, because the iteration begins with the iterator's first request.
    pub fn epoch(&self) -> (u32, u64) {
        (self.signs.epoch.load(Relaxed) as u32, u64::from(!self.on_demand))
    }

    /// Returns exclusive access to the reader, or None if any thread, even the current thread, uses the reader.
    #[inline]
    pub fn try_hold<'py>(&self, py: Python<'py>) -> Option<Held<'_, 'py>> {
        let reader = self.reader.with(py, Option::take)?;
        self.holder.store(this_thread());
        Some(Held { access: self, py, reader: Some(reader) })
    }

    pub fn hold<'py>(&self, py: Python<'py>) -> PyResult<Held<'_, 'py>> {
        self.try_hold(py).ok_or_else(|| {
            PyRuntimeError::new_err(if self.holder.load() == this_thread() {
                "a signal handler has interrupted this thread while the loader waits for items: set a flag in the \
                 handler, and read items or save the state in the loop"
            } else {
                "another thread is reading from this loader: a loader has one reader at a time"
            })
        })
    }

    fn hold_once_left<'py>(&self, py: Python<'py>) -> PyResult<Held<'_, 'py>> {
        self.owner.check()?; // in a forked child, the parent's reading thread does not exist
        let mut held = None;
        enter::poll(py, None, |_| {
            held = self.try_hold(py);
            if held.is_none() {
                self.refuse_here("an epoch cannot begin while this thread waits for an item of the previous epoch")?;
                self.signs.own.ring();
            }
            Ok(held.is_some())
        })?;
        Ok(held.expect("a poll without a limit ends with a result"))
    }

    /// Returns an error if this thread uses the reader, because the thread would otherwise wait for itself forever.
    fn refuse_here(&self, why: &str) -> PyResult<()> {
        if self.holder.load() == this_thread() {
            return Err(PyRuntimeError::new_err(format!(
                "{why} (for example in a signal handler): leave the loop first"
            )));
        }
        Ok(())
    }

    /// Starts an epoch. Before the epoch starts, a thread that still reads an earlier epoch stops.
    pub fn start_epoch(&self, py: Python<'_>, epoch: u32, window: u64, start: Start) -> PyResult<()> {
        self.signs.epoch.store(u64::from(epoch), Relaxed);
        let mut held = self.hold_once_left(py)?;
        let reader = &mut *held;
        let (Start { accounts, turn, passed }, peers) = (start, reader.peers.len());
        if turn.is_some_and(|turn| turn >= peers) {
            return Err(PyValueError::new_err(format!("there are {peers} peers, so the turn is out of range")));
        }
        self.signs.paused.store(false, Relaxed);
        reader.begin_epoch(window);
        if self.on_demand {
            reader.stream = Stream::new(epoch, passed);
            self.signs.pass.store(u64::from(passed), Relaxed);
            reader.progress.begin_early(py, accounts);
        } else {
            reader.progress.starts = accounts;
            reader.begin(py, &self.signs, Stream::first(epoch));
            if let Some(turn) = turn {
                reader.collecting.turn.start_at(turn);
                reader.progress.books.with(py, |books| books.begin_at(turn));
            }
        }
        self.signs.stopped.store(false, Relaxed);
        Ok(())
    }

    pub fn finish_epoch(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        self.signs.stopped.store(true, Relaxed);
        let mut held = self.hold_once_left(py)?;
        held.peers.links.iter_mut().for_each(|link| link.finish(epoch));
        Ok(())
    }

    pub fn set_paused(&self, py: Python<'_>, paused: bool) {
        self.signs.paused.store(paused, Relaxed);
        match self.try_hold(py) {
            Some(mut held) if self.owner.is_this() => held.apply_pause(&self.signs),
            Some(_) => {} // in a forked child, the links belong to the parent
            None => {
                self.signs.own.ring(); // the thread that uses the reader applies the pause
            }
        }
    }

    pub fn stop(&self, py: Python<'_>) {
        self.signs.stopped.store(true, Relaxed);
        self.set_paused(py, true);
    }

    /// Replaces all exited processes, and the processes in `exited`. If another thread is reading, returns false,
    /// because that thread replaces the processes.
    pub fn replace_processes(&self, py: Python<'_>, exited: Vec<usize>) -> PyResult<bool> {
        self.owner.check()?;
        self.refuse_here("a process has exited and cannot be replaced while this thread waits for an item")?;
        let Some(mut reader) = self.try_hold(py) else { return Ok(false) };
        reader.replace_processes(py, exited).map(|()| true)
    }

    /// Returns the next item of the given epoch. If `pass` is 0, the call begins a new iteration over the dispatched
    /// items.
    pub fn next<'py>(&self, py: Python<'py>, epoch: u32, pass: &AtomicU64) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.owner.check()?;
        let mut held = self.hold(py)?;
        let reader = &mut *held;
        if self.signs.epoch.load(Relaxed) != u64::from(epoch) {
            return Err(PyRuntimeError::new_err(
                "this iterator belongs to an earlier epoch: the loader has begun another epoch",
            ));
        }
        if pass.load(Relaxed) == 0 {
            let next = reader.stream.next_pass();
            reader.begin(py, &self.signs, next);
            pass.store(u64::from(next.pass()), Relaxed);
        }
        if pass.load(Relaxed) != u64::from(reader.stream.pass()) {
            return Err(PyRuntimeError::new_err("a later iterator over the same items has replaced this iterator"));
        }
        let next = reader.next(py, &self.signs, epoch);
        reader.apply_pause(&self.signs);
        next
    }

    /// Ends an unfinished iteration over the dispatched items, because unread items of this worker block other workers.
    pub fn leave(&self, py: Python<'_>, epoch: u32, pass: u64) {
        if !self.on_demand || pass == 0 {
            return;
        }
        if let Some(mut held) = self.try_hold(py)
            && self.owner.is_this()
            && u64::from(held.stream.pass()) == pass
            && !self.signs.is_over(epoch)
        {
            held.peers.links.iter_mut().for_each(Consumer::leave);
        }
    }
}
