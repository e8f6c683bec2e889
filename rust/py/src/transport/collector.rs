//! The receiving side: takes the items of all workers in turn, or the items that the dispatching process sends to a
//! worker.
//!
//! This code runs in the consumer process, in the thread that requests the next item: the main thread, or the thread of
//! a pipe that reads ahead. This file contains the Python class. `access.rs` decides who may read, and `reader.rs`
//! reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::{PyStopIteration, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;
use torchdata_core::link::consumer::Consumer;
use torchdata_core::protocol::{Books, Stream};

use super::access::{Access, Start};
use super::clock::Clock;
use super::interrupt::Interrupt;
use super::links::{PyBellBoard, PyLink, bell};
use super::peers::Peers;
use super::progress::Given;
use super::reader::{Reader, Row};
use super::snapshots::{
    Content, Entry, Kept, KeptDealt, REASON, Relay, account, entry, kept_places, unkept, unkept_dealt,
};
use super::stats::PyStatsBoard;
use super::watched::{Replacing, Sign};
use crate::errors;
use crate::gil_cell::GilCell;
use crate::pipes::delivery::Delivery;
use crate::seconds::duration;

/// Reads several links as one, from their consumer ends.
///
/// One thread reads at a time. Any thread can stop or pause it, or begin another epoch. The reading thread then stops,
/// and takes nothing more of its epoch.
#[pyclass(frozen, module = "torchdata._native")]
pub struct Collector {
    access: Access,
    /// The records of the reader, which are always consistent.
    books: Arc<GilCell<Books<Content>>>,
    pub(super) relay: Arc<Relay>,
}

#[pymethods]
impl Collector {
    /// The prefix of a snapshot's content if the process could not take a snapshot.
    #[classattr]
    const REASON: &[u8] = REASON;

    /// Takes the consumer's end of each link.
    ///
    /// `peers` are the processes at the opposite ends of the links, and `own` is this process, given as indices of
    /// bells. `shards` is the number of shards that send over the links; shard i uses link number i modulo the number
    /// of links. None means one shard per link. Shards are also called peers. `on_error(peer, description)` is called
    /// for a failure and must raise. With `on_demand`, a sender begins a pass when an iterator requests its first item,
    /// and begins a further pass for each further iterator.
    #[new]
    #[pyo3(signature = (
        links, board, own, peers, on_error, *, in_order = true, timeout = None, name = "worker process", on_demand = false,
        shards = None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python class")]
    fn new(
        links: Vec<Bound<'_, PyLink>>,
        board: &Bound<'_, PyBellBoard>,
        own: usize,
        peers: Vec<usize>,
        on_error: Py<PyAny>,
        in_order: bool,
        timeout: Option<f64>,
        name: &str,
        on_demand: bool,
        shards: Option<usize>,
    ) -> PyResult<Self> {
        if links.is_empty() || links.len() != peers.len() {
            return Err(PyValueError::new_err("a collector needs one peer for each of its links"));
        }
        let shards = shards.unwrap_or(links.len());
        if shards < links.len() {
            return Err(PyValueError::new_err("somebody has to send over each link"));
        }
        let mut consumers = Vec::with_capacity(links.len());
        for (link, &peer) in links.iter().zip(&peers) {
            consumers.push(link.get().0.consumer(bell(board, peer)?).map_err(errors::open)?);
        }
        let own = bell(board, own)?;
        let clock = Clock::new(timeout.map(duration), name);
        let reader = Reader::new(Peers::new(consumers, shards), in_order, clock, own.clone(), on_error);
        let books = Arc::clone(&reader.progress.books);
        let relay = Arc::clone(&reader.progress.relay);
        Ok(Self { access: Access::new(reader, own, on_demand), books, relay })
    }

    /// Watches processes, each by its id or by a descriptor that becomes readable when it exits. If a process has
    /// exited while this side waits, `on_exit(index)` is called and must raise.
    fn watch(&self, processes: Vec<(usize, Sign<'_>)>, on_exit: Py<PyAny>) -> PyResult<()> {
        self.access.hold()?.watch.watch(processes, on_exit).map_err(errors::open)
    }

    /// Watches processes, and replaces processes that exit.
    ///
    /// Once processes have exited, `on_death(dead, received, ended, paused)` is called. `dead` are the numbers of these
    /// processes. `received` holds the number of items received from each peer, `ended` whether each peer has ended,
    /// and `paused` whether all are paused. The callback returns the processes to replace, which have all exited by
    /// then.
    ///
    /// After that, `on_replace(dead, places, ended)` is called. `places` contains the position of each peer: the number
    /// of items received, the newest snapshot, and the snapshot of the dispatching process. For each process, the
    /// callback returns the number, the link to this side or None, and the id or descriptor of the replacement.
    ///
    /// If one of them raises an exception, nothing has changed, and the next call tries again. Process i sends over
    /// link i.
    fn watch_and_replace(
        &self,
        processes: Vec<(usize, Sign<'_>)>,
        on_death: Py<PyAny>,
        on_replace: Py<PyAny>,
    ) -> PyResult<()> {
        self.access.hold()?.watch.watch_and_replace(processes, Replacing { on_death, on_replace });
        Ok(())
    }

    /// Replaces the processes in `dead`, and all further processes that have exited. Returns False if another thread is
    /// reading, which then replaces them.
    fn replace_dead(&self, py: Python<'_>, dead: Vec<usize>) -> PyResult<bool> {
        self.access.replace_dead(py, dead)
    }

    /// Calls `on_surplus(awaited peer, received peer, bytes)`, at most once per epoch, if items that were received
    /// before their turn use more than `most` bytes of memory in this process.
    fn tell_surplus(&self, most: u64, on_surplus: Py<PyAny>) -> PyResult<()> {
        self.access.hold()?.peers.tell_surplus_to(most, on_surplus);
        Ok(())
    }

    /// Calls `on_note(peer, note)` for each note from a peer. An exception from the callback ends the read.
    fn tell_note(&self, on_note: Py<PyAny>) -> PyResult<()> {
        self.access.hold()?.on_note = Some(on_note);
        Ok(())
    }

    /// Counts on a page of the board from now on. The end of each link uses one flow, starting with `first`, and
    /// `peers` are the pages of the peers.
    ///
    /// In the main process, the wait for the first item of an epoch is counted separately (see `IteratorGuard`).
    fn count_into(
        &self,
        board: &Bound<'_, PyStatsBoard>,
        page: usize,
        first: usize,
        peers: Vec<u32>,
        main: bool,
    ) -> PyResult<()> {
        let mut held = self.access.hold()?;
        let flows = held.meters.count_into(board.get(), page, first, peers, main)?;
        held.peers.links_mut().iter_mut().zip(flows).for_each(|(link, flow)| link.count_into(flow));
        Ok(())
    }

    /// Counts waits for messages as idle time of the process with that page.
    fn count_idle(&self, board: &Bound<'_, PyStatsBoard>, page: usize) -> PyResult<()> {
        self.access.hold()?.meters.count_idle(board.get(), page)
    }

    /// Calls `on_stall(peer, seconds)` when a wait has lasted for this many seconds, and each time that its duration
    /// has doubled.
    fn tell_stall(&self, seconds: f64, on_stall: Py<PyAny>) -> PyResult<()> {
        self.access.hold()?.clock.tell_stall_to(duration(seconds), on_stall);
        Ok(())
    }

    /// Calls `on_hang(peer, seconds, patience)` regularly during a wait, instead of raising an error after the timeout.
    /// `patience` is the timeout, doubled for each process that was killed at this item before. A process that takes
    /// longer hangs. The callback kills it and returns whether it has killed one, which is then replaced (see
    /// `watch_and_replace`).
    fn tell_hang(&self, on_hang: Py<PyAny>) -> PyResult<()> {
        self.access.hold()?.clock.tell_hang_to(on_hang);
        Ok(())
    }

    /// Raises `exception` in every wait once the `control` link orders another epoch or a stop. While this process
    /// waits, it also informs the main process through the link `output` and the bell `main`.
    fn set_interrupt(
        &self,
        control: &Bound<'_, PyLink>,
        exception: Py<PyAny>,
        output: &Bound<'_, PyLink>,
        board: &Bound<'_, PyBellBoard>,
        main: usize,
    ) -> PyResult<()> {
        let announcer = output.get().0.announcer(bell(board, main)?);
        self.access.hold()?.interrupt = Some(Interrupt::new(control.get().0.probe(), exception, announcer));
        Ok(())
    }

    /// Starts an epoch. The process that sends over a link may be `window` items ahead. Call this before the peers
    /// receive the command to start.
    ///
    /// If a thread still reads for an earlier epoch, it is asked to stop, and the call waits until it has stopped.
    ///
    /// `starts` are the positions of an earlier run of the epoch, by peer; `turn` is the peer of the next item;
    /// `passed` is the number of passes over the dispatched items that were read.
    #[pyo3(signature = (epoch, window, starts = None, turn = None, passed = 0))]
    fn start_epoch(
        &self,
        py: Python<'_>,
        epoch: u32,
        window: u64,
        starts: Option<Vec<Entry>>,
        turn: Option<usize>,
        passed: u32,
    ) -> PyResult<()> {
        let accounts = starts.unwrap_or_default().into_iter().map(account).collect();
        self.access.start_epoch(py, epoch, window, Start { accounts, turn, passed })
    }

    /// Takes the number of items that the user has received from `delivery`. None means that the delivery is unknown.
    fn follow(&self, delivery: Option<Bound<'_, Delivery>>) -> PyResult<()> {
        let given = delivery.map_or(Given::Unknown, |delivery| Given::Counted(delivery.get().given()));
        self.access.hold()?.progress.given = given;
        Ok(())
    }

    /// Returns the positions of all peers after `delivered` items of the epoch, or now. The result is (by peer: the
    /// delivered items and the latest snapshot before them; the peer with the turn; the matching snapshot of the
    /// dispatching process), or None if the log is too short. Can be called at any time, also while another thread
    /// waits. Do not pass a count of deliveries that Python maintains, because it is updated too late.
    #[pyo3(signature = (delivered=None))]
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn places(
        &self,
        py: Python<'_>,
        delivered: Option<u64>,
    ) -> PyResult<Option<(Vec<(Entry, Option<Kept>)>, usize, Option<KeptDealt>)>> {
        self.books.with(py, |books| {
            let back = delivered.map_or(Some(0), |delivered| books.total().checked_sub(delivered));
            let Some((places, turn)) = back.and_then(|back| books.places(back)) else { return Ok(None) };
            let (places, dealt) = kept_places(py, books, &places);
            Ok(Some((places, turn, dealt)))
        })
    }

    /// Waits until each peer has sent its first unit of the epoch, usually a snapshot. The timeout is that for an item.
    fn await_snapshots(&self, py: Python<'_>, dealt: bool) -> PyResult<()> {
        self.access.hold()?.await_snapshots(py, self.access.signs(), dealt)
    }

    /// In a worker: waits for the dispatching process's snapshot of the beginning of the epoch, in order to relay it. A
    /// command ends the wait.
    fn await_relayed(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        self.access.hold()?.await_relayed(py, Stream::first(epoch))
    }

    /// The number of items delivered since the epoch began here.
    fn delivered(&self, py: Python<'_>) -> u64 {
        self.books.with(py, |books| books.total())
    }

    /// Keeps the snapshots that this run resumes from.
    fn keep(&self, py: Python<'_>, snapshots: Vec<Option<Kept>>, dealt: Option<KeptDealt>) {
        let superfluous: Vec<Content> = self.books.with(py, |books| {
            let mut superfluous = Vec::new();
            for (peer, one) in snapshots.into_iter().enumerate() {
                superfluous.extend(one.map(|one| books.keep(peer, unkept(one), None)).unwrap_or_default());
            }
            superfluous.extend(dealt.map(|one| books.keep_dealt(unkept_dealt(one))).unwrap_or_default());
            superfluous
        });
        drop(superfluous);
    }

    /// Returns the part of the dispatched items that a worker has read: (pass, (items, checksum)).
    fn share(&self, py: Python<'_>) -> (u64, Entry) {
        (self.access.signs().pass.load(Relaxed), self.books.with(py, |books| entry(books.taken(0))))
    }

    /// Ends this epoch, even if it was not read: the peers need not send further items of the epoch.
    fn finish_epoch(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        self.access.finish_epoch(py, epoch)
    }

    /// Pauses all peers. Items that were sent stay valid. Can be called at any time, also while another thread reads.
    fn pause(&self) {
        self.access.set_paused(true);
    }

    fn resume(&self) {
        self.access.set_paused(false);
    }

    /// Ends the epoch on this side: no more items are returned, and the peers stop computing them.
    ///
    /// Can be called at any time, also by a signal handler, or while another thread reads.
    fn stop(&self) {
        self.access.stop();
    }

    /// Receives items of some peers early, and allows them to compute more, if another peer waits for the dispatching
    /// process, which may wait for them.
    ///
    /// While the main process waits for something other than an item, it calls this repeatedly, and finally with
    /// `done`.
    fn relieve(&self, py: Python<'_>, done: bool) -> PyResult<()> {
        let Some(mut held) = self.access.try_hold() else { return Ok(()) }; // the reading thread does it
        if done {
            held.peers.links_mut().iter_mut().for_each(Consumer::restore_grant);
            return Ok(());
        }
        let Reader { peers, collecting, .. } = &mut *held;
        peers.help_starving(py, collecting)
    }

    /// Items taken from each link in this epoch.
    fn taken(&self) -> PyResult<Vec<u64>> {
        Ok(self.access.hold()?.peers.links().iter().map(Consumer::taken).collect())
    }

    /// Bytes of shared memory that received items hold, by link.
    fn leased(&self) -> PyResult<Vec<u64>> {
        Ok(self.access.hold()?.peers.links().iter().map(Consumer::leased).collect())
    }

    /// Acknowledges `count` messages to the sender.
    fn acknowledge(&self, count: u64) -> PyResult<()> {
        self.access.hold()?.peers.links()[0].acknowledge(count);
        Ok(())
    }

    /// Returns an iterator over the items of the current epoch. In a later epoch, the iterator returns no items.
    fn __iter__(slf: Bound<'_, Self>) -> PyResult<ItemStream> {
        let (epoch, pass) = slf.get().access.epoch();
        Ok(ItemStream { collector: slf.unbind(), epoch, pass: AtomicU64::new(pass) })
    }

    /// Waits up to `seconds` for a message from `peer`. Units of earlier epochs are skipped.
    ///
    /// Items before the message are lost, so this is only for peers that send no items.
    #[pyo3(signature = (peer, seconds = None))]
    fn receive<'py>(&self, py: Python<'py>, peer: usize, seconds: Option<f64>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.access.check_owner()?;
        self.access.hold()?.receive(py, peer, seconds.map(duration))
    }

    /// Returns the received results from `peer` after number `last`, their total time in seconds, and the message that
    /// ends the sequence, or the error of a result that cannot be decoded, if received. Waits for the first result like
    /// `receive`.
    #[pyo3(signature = (peer, last, seconds = None))]
    fn receive_results<'py>(
        &self,
        py: Python<'py>,
        peer: usize,
        last: u64,
        seconds: Option<f64>,
    ) -> PyResult<Row<'py>> {
        self.access.check_owner()?;
        self.access.hold()?.receive_results(py, peer, last, seconds.map(duration))
    }

    /// Visits nothing while a thread reads, because the reference of that thread keeps this object alive. The lock is
    /// only used with the GIL held, which the garbage collector also holds, so that all passes of one collection see
    /// the same references.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.access.try_hold().map_or(Ok(()), |reader| reader.traverse(&visit))
    }

    fn __clear__(&self) {
        let cleared = self.access.try_hold().map(|mut reader| reader.clear());
        drop(cleared); // the reader is not held here, because a drop may run arbitrary code that calls this object
    }
}

/// An iterator over the items that a `Collector` receives in one epoch, or in one pass for a worker that reads
/// dispatched items.
#[pyclass(frozen, module = "torchdata._native")]
pub struct ItemStream {
    collector: Py<Collector>,
    epoch: u32,
    /// The number of the pass, or 0 before the first item was requested.
    pass: AtomicU64,
}

#[pymethods]
impl ItemStream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.collector.get().access.next(py, self.epoch, &self.pass)
    }

    /// Appends the next item to a list. If a signal handler raises, the item is either in the list or was not taken.
    fn next_into(&self, hand: &Bound<'_, PyList>) -> PyResult<()> {
        let item = self.collector.get().access.next(hand.py(), self.epoch, &self.pass)?;
        hand.append(item.ok_or_else(|| PyStopIteration::new_err(()))?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.collector)
    }
}

impl Drop for ItemStream {
    fn drop(&mut self) {
        self.collector.get().access.leave(self.epoch, *self.pass.get_mut());
    }
}
