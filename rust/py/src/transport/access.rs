//! Access to the reader: by one thread, for one epoch.
//!
//! One thread reads at a time. Any thread, and a signal handler that runs while the reader waits, may stop or pause it,
//! or begin another epoch: it leaves a sign, and the thread that reads sees it in its wait.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use torchdata_core::link::consumer::Consumer;
use torchdata_core::process::board::BellRef;
use torchdata_core::protocol::{Account, Stream};
use torchdata_core::sync::exclusive::{Exclusive, Held};

use super::owning::OwningProcess;
use super::reader::{Reader, Signs};
use crate::enter;

/// The reader, and the signs that others leave for it.
pub struct Access {
    reader: Exclusive<Reader>,
    signs: Signs,
    /// Whether streams begin when somebody reads them (a worker's share), not with the epoch.
    on_demand: bool,
    /// The process that reads; a forked child must not take what is its parent's.
    owner: OwningProcess,
}

/// The place where an epoch begins.
pub struct Start {
    /// By peer: how far an earlier run of it has come.
    pub accounts: Vec<Account>,
    /// The peer whose item is next.
    pub turn: Option<usize>,
    /// Passes that were read of what is dispatched.
    pub passed: u32,
}

impl Access {
    pub fn new(reader: Reader, own: BellRef, on_demand: bool) -> Self {
        Self { reader: Exclusive::new(reader), signs: Signs::new(own), on_demand, owner: OwningProcess::this() }
    }

    pub fn signs(&self) -> &Signs {
        &self.signs
    }

    pub fn check_owner(&self) -> PyResult<()> {
        self.owner.check()
    }

    /// Returns the epoch in force, and the pass at which an iterator over it begins: 0 if its first item begins one.
    pub fn epoch(&self) -> (u32, u64) {
        (self.signs.epoch.load(Relaxed) as u32, u64::from(!self.on_demand))
    }

    /// Returns the reader, unless some thread reads, be it this one.
    pub fn try_hold(&self) -> Option<Held<'_, Reader>> {
        self.reader.try_hold()
    }

    /// Returns the reader for a thread that reads.
    pub fn hold(&self) -> PyResult<Held<'_, Reader>> {
        self.reader.try_hold().ok_or_else(|| {
            PyRuntimeError::new_err(
                "another thread is reading from this loader: a loader has one reader at a time (or a signal handler reads \
                 while the loop that it interrupted does)",
            )
        })
    }

    /// Returns the reader for a thread that has told the one that reads to leave, once that has left.
    fn hold_once_left(&self, py: Python<'_>) -> PyResult<Held<'_, Reader>> {
        self.owner.check()?; // a thread of our parent never leaves here
        let mut held = None;
        enter::poll(py, None, |_| {
            held = self.reader.try_hold();
            if held.is_none() {
                self.refuse_here("an epoch cannot begin while this thread waits for an item of the last one")?;
                self.signs.own.ring();
            }
            Ok(held.is_some())
        })?;
        Ok(held.expect("a poll without a limit ends with what it looked for"))
    }

    /// Raises an error if it is this thread that reads: a signal handler of it would wait for ever.
    fn refuse_here(&self, why: &str) -> PyResult<()> {
        if self.reader.is_held_here() {
            return Err(PyRuntimeError::new_err(format!("{why} (in a signal handler, say): leave the loop first")));
        }
        Ok(())
    }

    /// Begins an epoch in which the process behind each link may be `window` items ahead. A thread that reads for an earlier one is told
    /// to leave.
    pub fn start_epoch(&self, py: Python<'_>, epoch: u32, window: u64, start: Start) -> PyResult<()> {
        self.signs.epoch.store(u64::from(epoch), Relaxed);
        let mut held = self.hold_once_left(py)?;
        let reader = &mut *held;
        let (Start { accounts, turn, passed }, peers) = (start, reader.peers.len());
        if turn.is_some_and(|turn| turn >= peers) {
            return Err(PyValueError::new_err(format!("there are {peers} peers, and the turn is none's")));
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
                reader.collecting.begin_at(turn);
                reader.progress.books.with(py, |books| books.begin_at(turn));
            }
        }
        self.signs.stopped.store(false, Relaxed);
        Ok(())
    }

    /// Ends an epoch here, and tells the peers that no more of it is wanted, whether or not it was read.
    pub fn finish_epoch(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        self.signs.stopped.store(true, Relaxed);
        let mut held = self.hold_once_left(py)?;
        held.peers.links_mut().iter_mut().for_each(|link| link.finish(epoch));
        Ok(())
    }

    /// Lets nobody be ahead any further, or lets all again.
    pub fn set_paused(&self, paused: bool) {
        self.signs.paused.store(paused, Relaxed);
        match self.try_hold() {
            Some(mut held) if self.owner.is_this() => held.apply_pause(&self.signs),
            Some(_) => {} // the peers are our parent's
            None => {
                self.signs.own.ring(); // the thread that reads sees it
            }
        }
    }

    /// Ends the epoch here: no item of it is returned any more, and nobody makes one.
    pub fn stop(&self) {
        self.signs.stopped.store(true, Relaxed);
        self.set_paused(true);
    }

    /// Replaces the processes `dead`, and all others that have died. False if another thread reads, which then sees to
    /// it.
    pub fn replace_dead(&self, py: Python<'_>, dead: Vec<usize>) -> PyResult<bool> {
        self.owner.check()?;
        self.refuse_here("a process has died and cannot be replaced while this thread waits for an item")?;
        let Some(mut reader) = self.try_hold() else { return Ok(false) };
        reader.replace_dead(py, dead).map(|()| true)
    }

    /// Returns the next item of an epoch's pass: 0 before the first item was asked for, which begins one.
    pub fn next<'py>(&self, py: Python<'py>, epoch: u32, pass: &AtomicU64) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.owner.check()?;
        let mut held = self.hold()?;
        let reader = &mut *held;
        if self.signs.epoch.load(Relaxed) != u64::from(epoch) {
            return Err(PyRuntimeError::new_err(
                "this iterator belongs to an epoch that was left: the loader has begun another one since",
            ));
        }
        if pass.load(Relaxed) == 0 {
            let next = reader.stream.next_pass();
            reader.begin(py, &self.signs, next);
            pass.store(u64::from(next.pass()), Relaxed);
        }
        if pass.load(Relaxed) != u64::from(reader.stream.pass()) {
            return Err(PyRuntimeError::new_err("this iterator was left for a later one over the same items"));
        }
        let next = reader.next(py, &self.signs, epoch);
        reader.apply_pause(&self.signs);
        next
    }

    /// Leaves a pass: a share that is left before its end must not hold up those of others.
    pub fn leave(&self, epoch: u32, pass: u64) {
        if !self.on_demand || pass == 0 {
            return;
        }
        // A thread that reads meanwhile reads a later pass, of which the sender knows already.
        if let Some(mut held) = self.try_hold()
            && self.owner.is_this()
            && u64::from(held.stream.pass()) == pass
            && !self.signs.is_over(epoch)
        {
            held.peers.links_mut().iter_mut().for_each(Consumer::leave);
        }
    }
}
