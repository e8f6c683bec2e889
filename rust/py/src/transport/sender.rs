//! The sending side: the pump that runs a pipe in a worker, or deals its items out from the dispatching process.
//!
//! Runs in the main thread of a child. The loop over the pipe's iterator is here, so that an item costs no Python
//! frame of ours; commands are obeyed between two items, or while an item waits for room (see `outlet.rs`).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use torchdata_core::link::arena::Arena;
use torchdata_core::link::producer::Producer;
use torchdata_core::protocol::{Deal, Reader, Stream};
use torchdata_core::stats::WaitRef;

use super::collector::Collector;
use super::kinds as kind;
use super::links::{PyBellBoard, PyLink, bell};
use super::outlet::{Outlet, Sent, is_interrupted, is_over, tidy};
use super::snapshots::{Cadence, Entry, account, entry};
use super::stats::PyStatsBoard;
use super::waiting::wait_until;
use crate::buffers::ArenaBuffer;
use crate::codec::{self, Dtype, OUT_OF_BAND};
use crate::errors;
use crate::seconds::duration;

/// When a wait of so many seconds ends; None: never.
fn deadline(seconds: Option<f64>) -> Option<Instant> {
    // A wait that is too long for the clock has no end either.
    seconds.and_then(|seconds| Instant::now().checked_add(duration(seconds)))
}

/// Sends the items of shards over one link (a worker), or deals items to several (the dispatching process).
///
/// One thread sends; any thread of the process may allocate.
#[pyclass(frozen, module = "torchdata._native")]
pub struct Sender {
    outlet: Mutex<Outlet>,
    /// By link: its arena.
    arenas: Vec<Arc<Arena>>,
    /// The link that the next item goes out over.
    link: AtomicUsize,
}

impl Sender {
    fn outlet(&self) -> PyResult<MutexGuard<'_, Outlet>> {
        let outlet = match self.outlet.try_lock() {
            Ok(outlet) => outlet,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(PyRuntimeError::new_err("another thread is sending over this link"));
            }
        };
        outlet.owner.check()?;
        Ok(outlet)
    }
}

#[pymethods]
impl Sender {
    /// Takes the producer's end of each link.
    ///
    /// `peers` are the processes behind the links, `own` is this one: indices of bells. A message that waits in the
    /// `control` link interrupts the pump and every wait. So many `shards` send over a single link.
    #[new]
    #[pyo3(signature = (links, board, own, peers, control = None, shards = 1))]
    fn new(
        links: Vec<Bound<'_, PyLink>>,
        board: &Bound<'_, PyBellBoard>,
        own: usize,
        peers: Vec<usize>,
        control: Option<&Bound<'_, PyLink>>,
        shards: u16,
    ) -> PyResult<Self> {
        if links.is_empty() || links.len() != peers.len() {
            return Err(PyValueError::new_err("a sender needs one peer for each of its links"));
        }
        if shards == 0 || shards > 1 && links.len() > 1 {
            return Err(PyValueError::new_err("shards send over one link"));
        }
        let mut producers = Vec::with_capacity(links.len());
        for (link, &peer) in links.iter().zip(&peers) {
            producers.push(link.get().0.producer(bell(board, peer)?).map_err(errors::open)?);
        }
        let arenas: Vec<_> = producers.iter().map(|producer| Arc::clone(producer.arena())).collect();
        let outlet = Outlet::new(producers, shards, bell(board, own)?, control.map(|link| link.get().0.probe()));
        Ok(Self { outlet: Mutex::new(outlet), arenas, link: AtomicUsize::new(0) })
    }

    /// Counts on a page of the board from now on: this end of each link from flow `first` on, whose peers have those
    /// pages.
    fn count_into(&self, board: &Bound<'_, PyStatsBoard>, page: usize, first: usize, peers: Vec<u32>) -> PyResult<()> {
        let mut outlet = self.outlet()?;
        let flows = board.get().flows(page, first, &peers, true)?;
        outlet.meters = flows.iter().map(WaitRef::of).collect();
        let own = board.get().page(page)?;
        (outlet.idle, outlet.page) = (Some(own.idle()), Some(own));
        outlet.producers.iter_mut().zip(flows).for_each(|(producer, flow)| producer.count_into(flow));
        Ok(())
    }

    /// Starts an epoch: units carry its number, and items count from zero. A unit that was begun in an
    /// earlier one is given up.
    ///
    /// `starts` says, by shard or reader, from where an earlier run of it goes on: after how many items and with which
    /// checksum, how many of those that follow the reader has already, and the checksum behind these, to be compared if
    /// it is given. `turn` is the shard or reader of the first item.
    #[pyo3(signature = (epoch, pass_number = 1, starts = None, turn = 0))]
    fn start_epoch(
        &self,
        epoch: u32,
        pass_number: u32,
        starts: Option<Vec<(Entry, u64, Option<u64>)>>,
        turn: usize,
    ) -> PyResult<()> {
        let mut outlet = self.outlet()?;
        if let Some(relay) = &outlet.relay {
            relay.take(); // of an older epoch
        }
        outlet.begin(Stream::new(epoch, pass_number));
        let count = outlet.dealing.count();
        if turn >= count {
            return Err(PyValueError::new_err(format!("there are {count} shards or readers, and no number {turn}")));
        }
        outlet.dealing.begin_at(turn);
        let starts = starts.unwrap_or_default();
        outlet.expected = starts.iter().map(|&(.., expected)| expected).collect();
        for (target, (at, again, _)) in starts.into_iter().enumerate().take(count) {
            outlet.producer(target).go_on_from(account(at), again);
            outlet.owes |= again > 0;
        }
        Ok(())
    }

    /// Makes the pump call `taker(shard)` between two items now and then, for each shard: after calls that took a time c
    /// not before `seconds` and `factor` times c have passed.
    ///
    /// It returns None or (pass of what was read of the share, items and checksum of that, bytes), and must not send.
    fn take_snapshots(&self, taker: Py<PyAny>, seconds: f64, factor: f64) -> PyResult<()> {
        self.outlet()?.taker = Some((taker, Cadence::new(duration(seconds), factor)));
        Ok(())
    }

    /// Makes the pump call `noter(shard)` with snapshots that are due and at the end of a shard. It returns None, or an
    /// object that the other side of the shard's link passes to its `on_note`; it must not send.
    fn take_notes(&self, noter: Py<PyAny>) -> PyResult<()> {
        self.outlet()?.noter = Some(noter);
        Ok(())
    }

    /// Passes the snapshots on that come with what `collector` receives.
    fn pass_on(&self, collector: &Bound<'_, Collector>) -> PyResult<()> {
        self.outlet()?.relay = Some(Arc::clone(&collector.get().relay));
        Ok(())
    }

    /// Makes a snapshot of a shard at once, and waits until it is out. False when a command waits: the pump sends the
    /// rest.
    #[pyo3(signature = (shard = 0))]
    fn send_snapshot(&self, py: Python<'_>, shard: usize) -> PyResult<bool> {
        let mut outlet = self.outlet()?;
        if shard >= outlet.dealing.count() {
            return Err(PyValueError::new_err(format!("there is no shard {shard}")));
        }
        Ok(outlet.go_on(py)? == Sent::Done && outlet.send_snapshot(py, shard)?)
    }

    /// The same with a snapshot that is to be passed on, if one has come.
    fn send_relayed(&self, py: Python<'_>) -> PyResult<bool> {
        self.outlet()?.send_relayed(py)
    }

    /// By shard or reader: (items, checksum) of what went out in this stream, by earlier runs of it, too.
    fn accounts(&self) -> PyResult<Vec<Entry>> {
        Ok(self.outlet()?.producers.iter().flat_map(Producer::accounts).map(entry).collect())
    }

    /// Sends the items of `iterator` as far as the readers want them, until it ends, fails or a command waits. A tuple
    /// holds the iterators of several shards, which are asked in turn. `enter(shard)` is called before another shard is
    /// asked than the one before.
    ///
    /// Returns False if a command waits: call it again with the same iterators once the command was obeyed. Returns True
    /// once all items that are wanted of this pass were sent. Raises the errors of the iterators.
    #[pyo3(signature = (iterator, enter = None))]
    fn pump(&self, py: Python<'_>, iterator: &Bound<'_, PyAny>, enter: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let mut guard = self.outlet()?;
        let outlet = &mut *guard;
        let shards = iterator.cast::<PyTuple>().ok();
        let iterators: Vec<_> = shards.map_or_else(|| vec![iterator.clone()], |shards| shards.iter().collect());
        let several = iterators.len() > 1;
        if iterators.len() != if outlet.has_shards { outlet.dealing.count() } else { 1 } {
            return Err(PyValueError::new_err(
                "a sender needs one iterator for each of its shards, or one for all links",
            ));
        }
        outlet.entered = if several { usize::MAX } else { 0 };
        if outlet.settle(py)? == Sent::Interrupted {
            return Ok(false);
        }
        while !outlet.ending {
            let deal = outlet.wait_for_turn(py)?;
            let Some(deal) = deal else { return Ok(false) };
            let (Deal::To(target) | Deal::Skip(target)) = deal else { break };
            if !outlet.has_shards {
                self.link.store(target, Relaxed);
            }
            // The outlet stays locked while Python code runs: nobody else sends, and allocating needs no lock of it.
            let shard = if several { target } else { 0 };
            if shard != outlet.entered {
                outlet.entered = shard;
                enter.map(|enter| enter.call1((shard,))).transpose()?;
            }
            // SAFETY: the GIL is held; a NULL result is the end or an exception.
            let item = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyIter_Next(iterators[shard].as_ptr())) };
            let Some(item) = item else {
                if let Some(error) = PyErr::take(py) {
                    return Err(error);
                }
                outlet.owner.check()?;
                if !outlet.has_shards {
                    break;
                }
                outlet.close_shard(py, shard)?;
                if outlet.settle(py)? == Sent::Interrupted {
                    return Ok(false);
                }
                continue;
            };
            let is_owed = outlet.has_shards && outlet.owes;
            outlet.owner.check()?; // a process that the user's function has forked returns here, too
            match deal {
                Deal::To(target) => outlet.depart_item(target, &item)?,
                _ if outlet.producer(target).owed() > 0 => outlet.make_again(py, target, &item)?,
                _ => outlet.producer(target).skip(),
            }
            if !is_owed {
                outlet.dealing.advance(); // what is made again was in nobody's turn
            }
            drop(item);
            if outlet.go_on(py)? == Sent::Interrupted {
                return Ok(false);
            }
            outlet.snapshot_if_due(py)?;
            if outlet.go_on(py)? == Sent::Interrupted {
                return Ok(false);
            }
        }
        if !outlet.ending {
            (0..outlet.dealing.count()).try_for_each(|target| outlet.check_all_came_again(target))?;
            outlet.ending = true;
        }
        Ok(outlet.send_ends(py)? == Sent::Done)
    }

    /// Waits, after a pass, until the readers want another one, and begins it. False when a command waits.
    fn next_pass(&self, py: Python<'_>) -> PyResult<bool> {
        let mut outlet = self.outlet()?;
        let Outlet { producers, dealing, own, control, idle, .. } = &mut *outlet;
        let asked = || {
            // A damaged word counts as asking: the first item reports it.
            dealing.is_asked_again(|reader| producers[reader].reader().unwrap_or(Reader::Ahead))
        };
        wait_until(py, own, idle.as_ref(), || is_interrupted(control, None) || asked(), || (), |_| Ok(()))?;
        if is_interrupted(control, None) {
            return Ok(false);
        }
        outlet.begin_next();
        Ok(true)
    }

    /// Sends what describes the failure of the pipe to all readers: to one that got an end instead, a part of its share
    /// would look like the whole.
    ///
    /// Returns False when a command waits: to be called again once it was obeyed.
    fn send_error(&self, py: Python<'_>, description: &Bound<'_, PyAny>) -> PyResult<bool> {
        let mut outlet = self.outlet()?;
        outlet.ending = true;
        loop {
            // First what was begun: an item is whole, and an error is resumed.
            if outlet.go_on(py)? == Sent::Interrupted {
                return Ok(false);
            }
            let Some(target) = outlet.dealing.turn() else { return Ok(true) };
            outlet.depart(target, kind::ERROR, description, &[])?;
            outlet.dealing.end(target);
        }
    }

    /// Sends a message of the control protocol over the first link; gives up after `seconds`.
    ///
    /// `order` is the epoch, or what is beyond all epochs, that the message orders, if any: it ends what the peer runs.
    /// `tick` is called several times a second while waiting; what it raises ends the wait, and the message was not
    /// sent.
    ///
    /// Raises TimeoutError if the peer does not read.
    #[pyo3(signature = (message, seconds = None, order = None, tick = None))]
    fn send_message(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        seconds: Option<f64>,
        order: Option<u64>,
        tick: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let mut outlet = self.outlet()?;
        if let Some(order) = order {
            outlet.producers[0].order(order);
        }
        outlet.deadline = deadline(seconds);
        outlet.depart(0, kind::MESSAGE, message, &[])?;
        let sent = outlet.go_on_with(py, tick);
        outlet.deadline = None;
        sent.map(drop)
    }

    /// Sends the result of that number over the first link, with the seconds that it and those before it took. If
    /// `more_comes` at once, the peer may be woken a little later.
    fn send_result(
        &self,
        py: Python<'_>,
        number: u64,
        result: &Bound<'_, PyAny>,
        spent: f64,
        more_comes: bool,
    ) -> PyResult<()> {
        let mut outlet = self.outlet()?;
        outlet.depart(0, kind::RESULT, result, &kind::result_tail(number, spent))?;
        outlet.more_comes = more_comes;
        let sent = outlet.go_on(py);
        outlet.more_comes = false;
        sent.map(drop)
    }

    /// Waits until the peer has acknowledged `count` messages; False if `seconds` were not enough.
    ///
    /// `tick` is called several times a second while waiting; what it raises ends the wait.
    fn wait_acknowledged(&self, py: Python<'_>, count: u64, seconds: f64, tick: &Bound<'_, PyAny>) -> PyResult<bool> {
        let deadline = deadline(Some(seconds));
        let outlet = self.outlet()?;
        let producer = &outlet.producers[0];
        let done = || producer.acknowledged().map_or(true, |done| done >= count);
        wait_until(py, &outlet.own, None, || done() || is_over(deadline), || (), |_| tick.call0().map(drop))?;
        Ok(producer.acknowledged().map_err(errors::corrupted)? >= count)
    }

    /// The pass, and how many items of it were made for all readers, by earlier runs of it, too: those that went out,
    /// those that nobody wanted, and the one that waits for room.
    fn made(&self) -> PyResult<(u32, u64)> {
        let outlet = self.outlet()?;
        let waits = outlet.departing.as_ref().is_some_and(|unit| unit.kind & kind::WHAT == kind::ITEM);
        let made: u64 = outlet.producers.iter().flat_map(Producer::accounts).map(|account| account.items).sum();
        Ok((outlet.producers[0].stream().pass(), made + u64::from(waits)))
    }

    /// An array of a plain dtype over a block of the arena that the next item goes out of. Any thread may call it.
    ///
    /// Returns None if the arena has no room or the dtype does not cross without pickling.
    fn allocate<'py>(
        &self,
        py: Python<'py>,
        shape: Vec<usize>,
        dtype_number: i32,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some((dtype, item_size)) = Dtype::of_number(py, dtype_number)? else { return Ok(None) };
        let Some(len) = shape.iter().try_fold(item_size, |len, &dim| len.checked_mul(dim)) else { return Ok(None) };
        if len < OUT_OF_BAND {
            return Ok(None);
        }
        let arena = &self.arenas[self.link.load(Relaxed)];
        arena.reclaim().map_err(errors::corrupted)?;
        let Some(block) = arena.allocate(len) else { return Ok(None) };
        let buffer = Bound::new(py, ArenaBuffer { block: Arc::new(block) })?;
        let shape = shape.into_iter().map(|dim| dim as isize).collect();
        codec::empty_over(buffer, dtype, shape).map(Some)
    }

    /// Takes blocks back, and gives memory that has not been used for some seconds to the system.
    ///
    /// Returns whether there may be something to do later. Sending does this by itself; it is for a sender at rest.
    fn tidy(&self, py: Python<'_>) -> PyResult<bool> {
        tidy(py, &self.arenas)
    }

    /// Looks at nothing while a thread sends: its reference shows that this is no garbage.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(outlet) = self.outlet.try_lock() else { return Ok(()) };
        visit.call(outlet.taker.as_ref().map(|(taker, _)| taker))?;
        visit.call(&outlet.noter)
    }

    fn __clear__(&self) {
        let taken = self.outlet.try_lock().ok().map(|mut outlet| (outlet.taker.take(), outlet.noter.take()));
        drop(taken); // outside the lock: whatever that runs may come back here
    }

    /// (bytes in use, peak, blocks) of each link's arena.
    fn arena_usage(&self) -> Vec<(u64, u64, usize)> {
        let usages = self.arenas.iter().map(|arena| arena.usage());
        usages.map(|usage| (usage.in_use, usage.peak, usage.blocks)).collect()
    }
}
