//! Provides the Python class that sends the items of a worker process or of the dispatching process.
//!
//! The method `pump` loops over the pipe's iterator in Rust, so that sending an item runs no Python code of this
//! package. Commands are executed between two items, or while a message waits for space.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use torchdata_core::cadence::Cadence;
use torchdata_core::link::arena::Arena;
use torchdata_core::link::producer::Producer;
use torchdata_core::protocol::{Choice, Reader, Stream};
use torchdata_core::stats::WaitRef;

use super::collector::Collector;
use super::kinds as kind;
use super::links::{PyBellBoard, PyLink, bell};
use super::outlet::{Outlet, Sent, is_interrupted, is_over, tidy};
use super::snapshots::{Entry, account};
use super::stats::PyStatsBoard;
use super::waiting::wait_until;
use crate::buffers::ArenaBuffer;
use crate::codec::{self, Dtype, OUT_OF_BAND};
use crate::errors;
use crate::pipes::iterators::next_of;
use crate::seconds::duration;
use crate::shard_globals::ShardTurns;

fn deadline(seconds: Option<f64>) -> Option<Instant> {
    seconds.and_then(|seconds| Instant::now().checked_add(duration(seconds)))
}

/// Sends messages over links. Only one thread of the process sends messages, but any thread may allocate arena memory.
#[pyclass(frozen, module = "torchdata._native")]
pub struct Sender {
    outlet: Mutex<Outlet>,
    arenas: Vec<Arc<Arena>>,
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
    /// `own` is the index of this process in `board`, and `peers` contains the indices of the processes that receive
    /// the messages. A pending message in the `control` link interrupts `pump` and every wait.
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
        let outlet = Outlet::new(producers, shards, bell(board, own)?, control.map(|link| link.get().0.clone()));
        Ok(Self { outlet: Mutex::new(outlet), arenas, link: AtomicUsize::new(0) })
    }

    /// Counts messages on a page of the statistics board. The counters of link i have the index `first` + i, and
    /// `peers` contains the page number of each receiving process.
    fn count_into(&self, board: &Bound<'_, PyStatsBoard>, page: usize, first: usize, peers: Vec<u32>) -> PyResult<()> {
        let mut outlet = self.outlet()?;
        let flows = board.get().flows(page, first, &peers, true)?;
        outlet.meters = flows.iter().map(WaitRef::of).collect();
        let own = board.get().page(page)?;
        (outlet.idle, outlet.page) = (Some(own.idle()), Some(own));
        outlet.producers.iter_mut().zip(flows).for_each(|(producer, flow)| producer.count_into(flow));
        Ok(())
    }

    /// Starts an epoch, and drops any unsent part of an earlier message.
    ///
    /// To resume an epoch, `starts` contains for each shard or reader the number and checksum of the earlier items, the
    /// number of items to recompute, and the checksum after the recomputed items. In a worker process, `turn` is the
    /// index of the shard that sends the first item. In the dispatching process, `turn` is the index of the worker that
    /// receives the first item.
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
            relay.take(); // drops a snapshot of an earlier epoch
        }
        outlet.begin(Stream::new(epoch, pass_number));
        let count = outlet.dispatch.turn.peers();
        if turn >= count {
            return Err(PyValueError::new_err(format!("there are {count} shards or readers, and no number {turn}")));
        }
        outlet.dispatch.turn.start_at(turn);
        let starts = starts.unwrap_or_default();
        outlet.expected = starts.iter().map(|&(.., expected)| expected).collect();
        for (target, (at, again, _)) in starts.into_iter().enumerate().take(count) {
            outlet.producer(target).resume_from(account(at), again);
            outlet.recomputes |= again > 0;
        }
        Ok(())
    }

    /// Makes `pump` call `taker(shard, waits)` from time to time, between two items. The pause between two calls is
    /// `factor` times a call's duration, but at least `seconds`. While the process waits for its reader, the pause can
    /// be shorter. During this wait, `waits` is False, and `taker` must not wait for other threads.
    ///
    /// `taker` returns None or a tuple with the content of a snapshot. The tuple begins with the number of the
    /// iteration over the dispatched items, and the number and checksum of the items in this iteration.
    fn take_snapshots(&self, taker: Py<PyAny>, seconds: f64, factor: f64) -> PyResult<()> {
        self.outlet().map(|mut outlet| outlet.taker = Some((taker, Cadence::new(duration(seconds), factor))))
    }

    /// Makes `pump` call `noter(shard)` after each snapshot, and at the end of each shard. `noter` returns None or a
    /// note, which the reading process passes to its callback `on_note`.
    fn take_notes(&self, noter: Py<PyAny>) -> PyResult<()> {
        self.outlet().map(|mut outlet| outlet.noter = Some(noter))
    }

    fn pass_on(&self, collector: &Bound<'_, Collector>) -> PyResult<()> {
        self.outlet().map(|mut outlet| outlet.relay = Some(Arc::clone(&collector.get().relay)))
    }

    /// Sends a snapshot. Returns False if a command is pending. A later call of `pump` then continues to send the
    /// snapshot.
    #[pyo3(signature = (shard = 0))]
    fn send_snapshot(&self, py: Python<'_>, shard: usize) -> PyResult<bool> {
        let mut outlet = self.outlet()?;
        if shard >= outlet.dispatch.turn.peers() {
            return Err(PyValueError::new_err(format!("there is no shard {shard}")));
        }
        Ok(outlet.send_on(py)? == Sent::Done && outlet.send_snapshot(py, shard)?)
    }

    /// Forwards the dispatching process's latest snapshot to the main process. Returns False if a command is pending.
    fn send_relayed(&self, py: Python<'_>) -> PyResult<bool> {
        self.outlet()?.send_relayed(py)
    }

    /// Sends the items that the readers request. If `iterator` is a tuple, it contains the iterators of several shards,
    /// which take turns.
    ///
    /// Returns True once all requested items have been sent. Returns False if the caller must execute a pending command
    /// and call this method again.
    #[pyo3(signature = (iterator, turns = None))]
    fn pump(
        &self,
        py: Python<'_>,
        iterator: &Bound<'_, PyAny>,
        turns: Option<&Bound<'_, ShardTurns>>,
    ) -> PyResult<bool> {
        let mut guard = self.outlet()?;
        let outlet = &mut *guard;
        let shards = iterator.cast::<PyTuple>().ok();
        let iterators: Vec<_> = shards.map_or_else(|| vec![iterator.clone()], |shards| shards.iter().collect());
        let several = iterators.len() > 1;
        if iterators.len() != if outlet.has_shards { outlet.dispatch.turn.peers() } else { 1 } {
            return Err(PyValueError::new_err(
                "a sender needs one iterator for each of its shards, or one for all links",
            ));
        }
        if outlet.settle(py)? == Sent::Interrupted {
            return Ok(false);
        }
        while !outlet.ending {
            let Some(choice) = outlet.wait_for_turn(py)? else { return Ok(false) };
            let (Choice::To(target) | Choice::Skip(target)) = choice else { break };
            if !outlet.has_shards {
                self.link.store(target, Relaxed);
            }
            // The lock of `outlet` is held while the item is computed. No other thread waits for this lock, because
            // only this thread sends, and `allocate` works without the lock.
            let shard = if several { target } else { 0 };
            outlet.entered = shard;
            if let (true, Some(turns)) = (several, turns) {
                turns.get().enter(py, shard)?;
            }
            let Some(item) = next_of(&iterators[shard])? else {
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
            let is_outstanding = outlet.has_shards && outlet.recomputes;
            outlet.owner.check()?; // a process that user code has forked also returns to this line
            match choice {
                Choice::To(target) => outlet.depart_item(target, &item)?,
                _ if outlet.producer(target).outstanding() > 0 => outlet.recompute(py, target, &item)?,
                _ => outlet.producer(target).skip(),
            }
            if !is_outstanding {
                outlet.dispatch.turn.advance();
            }
            drop(item);
            if outlet.send_on(py)? == Sent::Interrupted || outlet.snapshot_if_due(py)? == Sent::Interrupted {
                return Ok(false);
            }
        }
        if !outlet.ending {
            (0..outlet.dispatch.turn.peers()).try_for_each(|target| outlet.check_all_recomputed(target))?;
            outlet.ending = true;
        }
        Ok(outlet.send_ends(py)? == Sent::Done)
    }

    /// Waits until a reader requests another iteration over the items. Returns False if a command is pending.
    fn next_pass(&self, py: Python<'_>) -> PyResult<bool> {
        let mut outlet = self.outlet()?;
        let Outlet { producers, dispatch, own, control, idle, .. } = &mut *outlet;
        let asked = || {
            // If a reader's `Grant` is damaged, the wait ends, and sending the first item reports the damage.
            dispatch.is_repeat_requested(|reader| producers[reader].reader().unwrap_or(Reader::Ahead))
        };
        wait_until(py, own, idle.as_ref(), || is_interrupted(control, None) || asked(), |_| Ok(()))?;
        if is_interrupted(control, None) {
            return Ok(false);
        }
        let next = outlet.producers[0].stream().next_pass();
        outlet.begin(next);
        outlet.dispatch.turn.start();
        Ok(true)
    }

    /// Sends a failure to all readers. The failure replaces the end marker, so that incomplete data does not look
    /// complete.
    fn send_error(&self, py: Python<'_>, description: &Bound<'_, PyAny>) -> PyResult<bool> {
        let mut outlet = self.outlet()?;
        outlet.ending = true;
        loop {
            // A message that was sent in part is completed first, because readers must receive complete items.
            if outlet.send_on(py)? == Sent::Interrupted {
                return Ok(false);
            }
            let Some(target) = outlet.dispatch.turn.next() else { return Ok(true) };
            outlet.depart(target, kind::ERROR, description, &[])?;
            outlet.dispatch.turn.end(target);
        }
    }

    /// Sends a message. Raises TimeoutError if the receiver does not read the message within `seconds`.
    ///
    /// If `order` is given, the receiver ends its current epoch before it reads the message. `tick` is called several
    /// times per second, and may raise an exception to abandon the message.
    #[pyo3(signature = (message, seconds = None, order = None, tick = None))]
    fn send_message(
        &self,
        py: Python<'_>,
        message: &Bound<'_, PyAny>,
        seconds: Option<f64>,
        order: Option<u64>,
        tick: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let mut outlet = self.outlet()?;
        if let Some(order) = order {
            outlet.producers[0].order(order);
        }
        outlet.depart(0, kind::MESSAGE, message, &[])?;
        (outlet.deadline, outlet.tick) = (deadline(seconds), tick);
        let sent = outlet.send_on(py);
        (outlet.deadline, outlet.tick) = (None, None);
        sent.map(drop)
    }

    /// Sends the result of a function call. `spent` is the number of seconds since this process began the current batch
    /// of calls. If `more_comes` is true, the receiving process may be woken up later, after the next result.
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
        let sent = outlet.send_on(py);
        outlet.more_comes = false;
        sent?;
        outlet.producers[0].count_item();
        Ok(())
    }

    /// Waits until `count` messages were acknowledged, or returns False after `seconds`. `tick` is called several times
    /// per second, and may raise an exception to end the wait.
    fn wait_acknowledged(&self, py: Python<'_>, count: u64, seconds: f64, tick: &Bound<'_, PyAny>) -> PyResult<bool> {
        let deadline = deadline(Some(seconds));
        let outlet = self.outlet()?;
        let producer = &outlet.producers[0];
        let done = || producer.acknowledged().map_or(true, |done| done >= count);
        wait_until(py, &outlet.own, None, || done() || is_over(deadline), |_| tick.call0().map(drop))?;
        Ok(producer.acknowledged().map_err(errors::corrupted)? >= count)
    }

    /// Returns the number of the current iteration, and the number of items that were computed in this iteration,
    /// including unsent items.
    fn made(&self) -> PyResult<(u32, u64)> {
        let outlet = self.outlet()?;
        let waits = outlet.departing.as_ref().is_some_and(|message| message.kind & kind::WHAT == kind::ITEM);
        let made: u64 = outlet.producers.iter().flat_map(Producer::accounts).map(|account| account.items).sum();
        Ok((outlet.producers[0].stream().pass(), made + u64::from(waits)))
    }

    /// Creates an array in the arena. Returns None if the arena is full, or if arrays of this dtype must be pickled.
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

    fn tidy(&self, py: Python<'_>) -> PyResult<bool> {
        tidy(py, &self.arenas)
    }

    /// While a thread sends, this method visits no references, because the thread's reference keeps this object alive.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(outlet) = self.outlet.try_lock() else { return Ok(()) };
        visit.call(outlet.taker.as_ref().map(|(taker, _)| taker))?;
        visit.call(&outlet.noter)
    }

    fn __clear__(&self) {
        let taken = self.outlet.try_lock().ok().map(|mut outlet| (outlet.taker.take(), outlet.noter.take()));
        drop(taken); // dropped after the lock is released, because dropping may call this object
    }

    /// Returns for the arena of each link the number of bytes in use, the maximum of this number so far, and the number
    /// of blocks.
    fn arena_usage(&self) -> Vec<(u64, u64, usize)> {
        let usages = self.arenas.iter().map(|arena| arena.usage());
        usages.map(|usage| (usage.in_use, usage.peak, usage.blocks)).collect()
    }
}
