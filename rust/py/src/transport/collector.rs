//! Provides the Python class that receives items from worker processes, or dispatched items in a worker process.

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
use super::progress::Received;
use super::reader::{Reader, Row};
use super::snapshots::{
    Content, Entry, Kept, KeptDispatched, REASON, Relay, account, entry, kept_positions, unkept, unkept_dispatched,
};
use super::stats::PyStatsBoard;
use super::watched::{Replacing, Sign};
use crate::errors;
use crate::gil_cell::GilCell;
use crate::pipes::delivery::Delivery;
use crate::seconds::duration;

/// Reads the items of several links as one sequence, in one thread at a time. Any thread can stop or pause the reading,
/// or start another epoch.
#[pyclass(frozen, module = "torchdata._native")]
pub struct Collector {
    access: Access,
    books: Arc<GilCell<Books<Content>>>,
    pub(super) relay: Arc<Relay>,
}

#[pymethods]
impl Collector {
    /// If the content of a snapshot begins with this prefix, the rest of the content is the reason why a worker could
    /// not take a snapshot.
    #[classattr]
    const REASON: &[u8] = REASON;

    /// `peers` and `own` are the indices in `board` of the sending processes and of this process. Shard i sends over
    /// link i modulo the number of links. `on_error(peer, description)` is called when a sending process reports a
    /// failure, and must raise an exception. If `on_demand` is true, the first request of each iterator begins a new
    /// iteration over the dispatched items.
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
            return Err(PyValueError::new_err("at least one shard must send over each link"));
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

    /// Watches processes, which are given by an id or by a descriptor that becomes readable when the process exits.
    /// When a process has exited, a waiting reader calls `on_exit(index)`, which must raise an exception.
    fn watch(&self, py: Python<'_>, processes: Vec<(usize, Sign<'_>)>, on_exit: Py<PyAny>) -> PyResult<()> {
        self.access.hold(py)?.watch.watch(processes, on_exit).map_err(errors::open)
    }

    /// Watches processes, and replaces processes that exit.
    ///
    /// `on_loss(exited, received, ended, paused)` returns the indices of the processes to replace. For each shard,
    /// `received` contains the number of received items, and `ended` contains whether all items were received. `paused`
    /// is true if the senders are paused.
    ///
    /// `on_replace(exited, positions, ended)` starts these replacements. `on_replace` returns (index, new link or None,
    /// id or descriptor of the new process) for each replacement.
    ///
    /// If a callback raises an exception, nothing changes, and the next read calls the callbacks again.
    fn watch_and_replace(
        &self,
        py: Python<'_>,
        processes: Vec<(usize, Sign<'_>)>,
        on_loss: Py<PyAny>,
        on_replace: Py<PyAny>,
    ) -> PyResult<()> {
        self.access.hold(py).map(|mut held| held.watch.watch_and_replace(processes, Replacing { on_loss, on_replace }))
    }

    /// Replaces all exited processes. If another thread is reading, returns False, because that thread replaces the
    /// processes.
    fn replace_processes(&self, py: Python<'_>, exited: Vec<usize>) -> PyResult<bool> {
        self.access.replace_processes(py, exited)
    }

    /// Calls `on_surplus(next peer, early peer, bytes)` once per epoch, when more than `most` bytes were received
    /// before their turn.
    fn report_surplus(&self, py: Python<'_>, most: u64, on_surplus: Py<PyAny>) -> PyResult<()> {
        self.access.hold(py).map(|mut held| held.peers.report_surplus_to(most, on_surplus))
    }

    fn take_note(&self, py: Python<'_>, on_note: Py<PyAny>) -> PyResult<()> {
        self.access.hold(py).map(|mut held| held.on_note = Some(on_note))
    }

    /// From now on, counts received items and measures waits on a page of the statistics board. Link i uses the
    /// counters with the index `first` + i. `peers` contains the page number of each sending process.
    fn count_into(
        &self,
        py: Python<'_>,
        board: &Bound<'_, PyStatsBoard>,
        page: usize,
        first: usize,
        peers: Vec<u32>,
        main: bool,
    ) -> PyResult<()> {
        let mut held = self.access.hold(py)?;
        let flows = board.get().flows(page, first, &peers, false)?;
        held.meters.count_into(&flows, main.then(|| board.get().page(page)).transpose()?);
        held.peers.links.iter_mut().zip(flows).for_each(|(link, flow)| link.count_into(flow));
        Ok(())
    }

    fn count_idle(&self, py: Python<'_>, board: &Bound<'_, PyStatsBoard>, page: usize) -> PyResult<()> {
        self.access.hold(py)?.meters.idle = Some(board.get().page(page)?.idle());
        Ok(())
    }

    fn report_stall(&self, py: Python<'_>, seconds: f64, on_stall: Py<PyAny>) -> PyResult<()> {
        self.access.hold(py).map(|mut held| held.clock.report_stall_to(duration(seconds), on_stall))
    }

    /// Calls `on_hang(peer, seconds, patience)` regularly during waits. The callback `on_hang` kills a process that
    /// takes longer than `patience`, and returns whether it has killed a process.
    fn report_hang(&self, py: Python<'_>, on_hang: Py<PyAny>) -> PyResult<()> {
        self.access.hold(py).map(|mut held| held.clock.report_hang_to(on_hang))
    }

    /// Makes every wait raise `exception` once the main process has commanded another epoch or a stop.
    fn set_interrupt(
        &self,
        py: Python<'_>,
        control: &Bound<'_, PyLink>,
        exception: Py<PyAny>,
        output: &Bound<'_, PyLink>,
        board: &Bound<'_, PyBellBoard>,
        main: usize,
    ) -> PyResult<()> {
        let output = (output.get().0.clone(), bell(board, main)?);
        let interrupt = Interrupt { control: control.get().0.clone(), exception, output };
        self.access.hold(py).map(|mut held| held.interrupt = Some(interrupt))
    }

    /// Starts an epoch. The main process must call this method before it sends the command that starts the epoch. If
    /// a thread is reading an earlier epoch, this call makes the thread stop.
    ///
    /// To resume an epoch, pass its position as `starts`, `turn` (the next shard) and `passed` (how often the epoch has
    /// iterated over the dispatched items).
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

    fn follow(&self, py: Python<'_>, delivery: Option<Bound<'_, Delivery>>) -> PyResult<()> {
        let received = delivery.map_or(Received::Unknown, |delivery| Received::Counted(delivery.get().received()));
        self.access.hold(py).map(|mut held| held.progress.received = received)
    }

    /// Returns the position after `delivered` items, or the current position if `delivered` is None. Returns None if
    /// the log of deliveries is too short to determine the position.
    ///
    /// A position consists of the received items and the snapshot of each shard, the shard of the next item, and the
    /// snapshot of the dispatching process.
    #[pyo3(signature = (delivered=None))]
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn positions(
        &self,
        py: Python<'_>,
        delivered: Option<u64>,
    ) -> PyResult<Option<(Vec<(Entry, Option<Kept>)>, usize, Option<KeptDispatched>)>> {
        self.books.with(py, |books| {
            let back = delivered.map_or(Some(0), |delivered| books.total().checked_sub(delivered));
            let Some((positions, turn)) = back.and_then(|back| books.positions(back)) else { return Ok(None) };
            let (positions, dispatched) = kept_positions(py, books, &positions);
            Ok(Some((positions, turn, dispatched)))
        })
    }

    /// Waits for the first message of the epoch from each shard, which is usually a snapshot.
    fn await_snapshots(&self, py: Python<'_>, dispatched: bool) -> PyResult<()> {
        self.access.hold(py)?.await_snapshots(py, &self.access.signs, dispatched)
    }

    /// Waits in a worker process for the first snapshot of the dispatching process in `epoch`, or until a command of
    /// the main process arrives.
    fn await_relayed(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        self.access.hold(py)?.await_relayed(py, Stream::first(epoch))
    }

    fn delivered(&self, py: Python<'_>) -> u64 {
        self.books.with(py, |books| books.total())
    }

    fn keep(&self, py: Python<'_>, snapshots: Vec<Option<Kept>>, dispatched: Option<KeptDispatched>) {
        let superfluous = self.books.with(py, |books| {
            let snapshots = snapshots.into_iter().enumerate();
            let kept = snapshots.flat_map(|(peer, one)| one.map(|one| books.keep(peer, unkept(one), None)));
            let superfluous: Vec<_> = kept.collect();
            (superfluous, dispatched.map(|one| books.keep_dispatched(unkept_dispatched(one))))
        });
        drop(superfluous);
    }

    /// Returns the number of the current iteration over the dispatched items, and the number and checksum of the items
    /// that this worker has read in this iteration.
    fn share(&self, py: Python<'_>) -> (u64, Entry) {
        (self.access.signs.pass.load(Relaxed), self.books.with(py, |books| entry(books.taken(0))))
    }

    fn finish_epoch(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        self.access.finish_epoch(py, epoch)
    }

    /// Pauses all senders. Any thread may call this method at any time, also during a read.
    fn pause(&self, py: Python<'_>) {
        self.access.set_paused(py, true);
    }

    fn resume(&self, py: Python<'_>) {
        self.access.set_paused(py, false);
    }

    /// Ends the epoch in this process, so that no more items are returned. Any thread or signal handler may call this
    /// method at any time, also during a read.
    fn stop(&self, py: Python<'_>) {
        self.access.stop(py);
    }

    /// Receives items before their turn, to prevent a deadlock while the caller waits for child processes to execute a
    /// command. The caller must call this method repeatedly during the wait, and finally with `done` = True.
    fn relieve(&self, py: Python<'_>, done: bool) -> PyResult<()> {
        let Some(mut held) = self.access.try_hold(py) else { return Ok(()) }; // the reading thread receives these items
        if done {
            held.peers.links.iter_mut().for_each(Consumer::restore_grant);
            return Ok(());
        }
        let Reader { peers, collecting, .. } = &mut *held;
        peers.help_starving(py, collecting)
    }

    fn leased(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        Ok(self.access.hold(py)?.peers.links.iter().map(Consumer::leased).collect())
    }

    fn acknowledge(&self, py: Python<'_>, count: u64) -> PyResult<()> {
        self.access.hold(py).map(|held| held.peers.links[0].acknowledge(count))
    }

    fn __iter__(slf: Bound<'_, Self>) -> PyResult<ItemStream> {
        let (epoch, pass) = slf.get().access.epoch();
        Ok(ItemStream { collector: slf.unbind(), epoch, pass: AtomicU64::new(pass) })
    }

    #[pyo3(signature = (peer, seconds = None))]
    fn receive<'py>(&self, py: Python<'py>, peer: usize, seconds: Option<f64>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.access.owner.check()?;
        self.access.hold(py)?.receive(py, peer, seconds.map(duration))
    }

    /// Returns the results of all function calls with numbers above `last`, their total time in seconds, and the next
    /// message or None. If a result cannot be decoded, the error of decoding is returned instead of a message.
    #[pyo3(signature = (peer, last, seconds = None))]
    fn receive_results<'py>(
        &self,
        py: Python<'py>,
        peer: usize,
        last: u64,
        seconds: Option<f64>,
    ) -> PyResult<Row<'py>> {
        self.access.owner.check()?;
        self.access.hold(py)?.receive_results(py, peer, last, seconds.map(duration))
    }

    /// While a thread reads, this method visits no references, because the thread's reference keeps this object alive.
    /// A thread takes the reader only with the GIL held, so all traversals by the garbage collector visit the same
    /// references.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: the garbage collector holds the GIL during this call, but provides no interpreter token.
        let py = unsafe { Python::assume_attached() };
        self.access.try_hold(py).map_or(Ok(()), |reader| reader.traverse(&visit))
    }

    fn __clear__(&self, py: Python<'_>) {
        let cleared = self.access.try_hold(py).map(|mut reader| reader.clear());
        drop(cleared); // dropped after the reader is released, because dropping may call this object
    }
}

#[pyclass(frozen, module = "torchdata._native")]
pub struct ItemStream {
    collector: Py<Collector>,
    epoch: u32,
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

    /// Appends the next item to a list. The item is not lost if a signal handler raises an exception.
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
        Python::attach(|py| self.collector.get().access.leave(py, self.epoch, *self.pass.get_mut()));
    }
}
