//! The receiving side: takes the items of all workers in turn, or a worker's share from the dispatching process.
//!
//! Runs in the consumer's process, in whichever thread asks for the next item: the main thread, or the thread of a pipe that
//! reads ahead. Here is who may read and for which epoch; how reading goes stands in `reader.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;
use torchdata_core::exclusive::{Exclusive, Held};
use torchdata_core::link::consumer::Unit;
use torchdata_core::protocol::{Books, Collecting, Stream};
use torchdata_core::stats::WaitRef;

use super::kinds as kind;
use super::links::bell;
use super::links::{PyBellBoard, PyLink};
use super::owning::OwningProcess;
use super::reader::{Given, Peer, Reader, Signs, Stall, Taken, decode};
use super::snapshots::{
    Content, Entry, Kept, KeptDealt, Relay, account, entry, kept, kept_dealt, unkept, unkept_dealt,
};
use super::stats::PyStatsBoard;
use super::waiting::wait_until;
use super::watched::{Mortal, Replacing};
use crate::enter;
use crate::errors;
use crate::gil_cell::GilCell;
use crate::pipes::delivery::Delivery;
use crate::seconds::duration;
use crate::trace::Origin;

/// The consumer's ends of links, read as one.
///
/// One thread reads at a time; any thread, and a signal handler that runs while the reader waits, may stop or pause it, or begin
/// another epoch. Whoever reads then is told that its epoch is over, and takes nothing more.
#[pyclass(frozen, module = "torchdata._native")]
pub struct Collector {
    reader: Exclusive<Reader>,
    signs: Signs,
    /// How far it has come, and what others may go on from: found whole at any time.
    books: Arc<GilCell<Books<Content>>>,
    pub(super) relay: Arc<Relay>,
    /// Whether streams begin when somebody reads them (a worker's share), not with the epoch.
    on_demand: bool,
    /// The process that reads; a forked child must not take what is its parent's.
    owner: OwningProcess,
}

impl Collector {
    /// The reader for somebody who reads.
    fn reader(&self) -> PyResult<Held<'_, Reader>> {
        self.reader.try_hold().ok_or_else(|| {
            PyRuntimeError::new_err(
                "another thread is reading from this loader: a loader has one reader at a time (or a signal handler reads \
                 while the loop that it interrupted does)",
            )
        })
    }

    /// The reader for somebody who has told whoever reads to leave: waits until it has left.
    fn reader_once_left(&self, py: Python<'_>) -> PyResult<Held<'_, Reader>> {
        self.owner.check()?; // who reads may be a thread of our parent, which never leaves here
        let mut held = None;
        enter::poll(py, None, |_| {
            held = self.reader.try_hold();
            if held.is_none() && self.reader.is_held_here() {
                return Err(PyRuntimeError::new_err(
                    "an epoch cannot begin while this thread waits for an item of the last one (in a signal handler, say): \
                     leave the loop first",
                ));
            }
            if held.is_none() {
                self.signs.own.ring();
            }
            Ok(held.is_some())
        })?;
        Ok(held.expect("a poll without a limit ends with what it looked for"))
    }
}

#[pymethods]
impl Collector {
    /// Takes the consumer's end of each link.
    ///
    /// `peers` are the processes behind the links, `own` is this one: indices of bells. `on_error(peer, description)`
    /// is called for a failure and must raise. With `on_demand`, a sender begins when an iterator asks for its first item, and
    /// sends once more for each further iterator.
    #[new]
    #[pyo3(signature = (
        links, board, own, peers, on_error, *, in_order = true, timeout = None, name = "worker process", on_demand = false,
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
    ) -> PyResult<Self> {
        if links.is_empty() || links.len() != peers.len() {
            return Err(PyValueError::new_err("a collector needs one peer for each of its links"));
        }
        let mut ends = Vec::with_capacity(links.len());
        for (link, &peer) in links.iter().zip(&peers) {
            let consumer = link.get().0.consumer(bell(board, peer)?).map_err(errors::open)?;
            ends.push(Peer { consumer, taken_in: VecDeque::new() });
        }
        let own = bell(board, own)?;
        let signs = Signs {
            epoch: AtomicU64::new(0),
            stopped: AtomicBool::new(true),
            paused: AtomicBool::new(false),
            pass: AtomicU64::new(0),
            own: own.clone(),
        };
        let books = Arc::new(GilCell::new(Books::new(ends.len())));
        let relay = Arc::new(Relay::default());
        let reader = Reader {
            collecting: Collecting::new(ends.len(), in_order),
            peers: ends,
            stream: Stream::default(),
            window: 1,
            paused: false,
            own,
            watches: Vec::new(),
            dead: None,
            on_exit: None,
            replacing: None,
            on_error,
            on_surplus: None,
            surplus: 0,
            most_surplus: u64::MAX,
            said: false,
            interrupt: None,
            timeout: timeout.map(duration),
            waiting: None,
            name: name.to_owned(),
            current: Taken::default(),
            books: Arc::clone(&books),
            relay: Arc::clone(&relay),
            given: Given::All,
            starts: Vec::new(),
            meters: Vec::new(),
            idle: None,
            page: None,
            fresh: false,
            stall: None,
            looked_into: None,
            origin: Origin::default(),
        };
        Ok(Self { reader: Exclusive::new(reader), signs, books, relay, on_demand, owner: OwningProcess::this() })
    }

    /// Watches processes: when one has ended while this side waits, `on_exit(index)` is called and must raise.
    fn watch(&self, processes: Vec<(usize, i32)>, on_exit: Py<PyAny>) -> PyResult<()> {
        let mut held = self.reader()?;
        let reader = &mut *held;
        reader.watches = processes
            .into_iter()
            .map(|(index, pid)| Mortal::watch(pid).map(|watch| (index, watch)))
            .collect::<Result<_, _>>()
            .map_err(errors::open)?;
        reader.on_exit = Some(on_exit);
        Ok(())
    }

    /// Watches processes that are replaced by others where they die.
    ///
    /// When some have, `on_death(dead, items received of each peer, whether each has ended, whether all are paused)` returns those that are to be
    /// replaced, all of which have ended by then; with them
    /// `on_replace(dead, (by peer: items received and the newest snapshot; the dispatching process's), whether each has ended)`
    /// returns for each its
    /// number, its link, if it sends to this side, and its process number. What is raised leaves all as it was, to be tried again.
    fn watch_and_replace(
        &self,
        processes: Vec<(usize, i32)>,
        on_death: Py<PyAny>,
        on_replace: Py<PyAny>,
    ) -> PyResult<()> {
        let mut reader = self.reader()?;
        reader.watches = processes.into_iter().map(|(index, pid)| (index, Mortal::of(pid))).collect();
        reader.replacing = Some(Replacing { on_death, on_replace });
        Ok(())
    }

    /// Replaces the processes `dead`, and whatever else has died. False where another thread reads, and will see to it.
    fn replace_dead(&self, py: Python<'_>, dead: Vec<usize>) -> PyResult<bool> {
        self.owner.check()?;
        if self.reader.is_held_here() {
            return Err(PyRuntimeError::new_err(
                "a process has died and cannot be replaced while this thread waits for an item (in a signal handler, say): leave \
                 the loop first",
            ));
        }
        let Some(mut reader) = self.reader.try_hold() else { return Ok(false) };
        reader.replace_dead(py, dead).map(|()| true)
    }

    /// Calls `on_surplus(waited for, taken in, bytes)`, once an epoch, when items that were taken in before their turn take more
    /// than `most` bytes of this process's own memory.
    fn tell_surplus(&self, most: u64, on_surplus: Py<PyAny>) -> PyResult<()> {
        let mut held = self.reader()?;
        (held.most_surplus, held.on_surplus) = (most, Some(on_surplus));
        Ok(())
    }

    /// Counts on a page of the board from now on: this end of each link from flow `first` on, whose peers have those pages.
    ///
    /// In main, a wait for the first item of an epoch is counted elsewhere (see `IteratorGuard`).
    fn count_into(
        &self,
        board: &Bound<'_, PyStatsBoard>,
        page: usize,
        first: usize,
        peers: Vec<u32>,
        main: bool,
    ) -> PyResult<()> {
        let mut held = self.reader()?;
        let flows = board.get().flows(page, first, &peers, false)?;
        held.origin = Origin { loader: board.get().0.made().1, pages: peers };
        held.meters = flows.iter().map(WaitRef::of).collect();
        held.page = if main { Some(board.get().page(page)?) } else { None };
        held.peers.iter_mut().zip(flows).for_each(|(peer, flow)| peer.consumer.count_into(flow));
        Ok(())
    }

    /// Counts waits for messages as times at which the process of that page is idle.
    fn count_idle(&self, board: &Bound<'_, PyStatsBoard>, page: usize) -> PyResult<()> {
        self.reader()?.idle = Some(board.get().page(page)?.idle());
        Ok(())
    }

    /// Calls `on_stall(peer, seconds)` when no item has come for so many seconds, and again each time that twice as many have.
    fn tell_stall(&self, seconds: f64, on_stall: Py<PyAny>) -> PyResult<()> {
        self.reader()?.stall = Some(Stall { patience: duration(seconds), next: duration(seconds), on_stall });
        Ok(())
    }

    /// Raises `exception` from every wait once the `control` link orders another epoch or the end, and tells main, behind
    /// the link `output` and the bell `main`, while this process waits.
    fn set_interrupt(
        &self,
        control: &Bound<'_, PyLink>,
        exception: Py<PyAny>,
        output: &Bound<'_, PyLink>,
        board: &Bound<'_, PyBellBoard>,
        main: usize,
    ) -> PyResult<()> {
        let announcer = output.get().0.announcer(bell(board, main)?);
        self.reader()?.interrupt = Some((control.get().0.probe(), exception, announcer));
        Ok(())
    }

    /// Starts an epoch in which each peer may run `window` items ahead. To be called before the peers are told.
    ///
    /// Who still reads for an earlier one is told to leave, and waited for.
    ///
    /// `starts` says how far an earlier run of the epoch has come with each peer, `turn` whose the next item is, `passed` how
    /// many passes of what is dispatched were read.
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
        self.signs.epoch.store(u64::from(epoch), Relaxed);
        let mut held = self.reader_once_left(py)?;
        let reader = &mut *held;
        self.signs.paused.store(false, Relaxed);
        reader.begin_epoch(window);
        reader.starts = starts.unwrap_or_default().into_iter().map(account).collect();
        if turn.is_some_and(|turn| turn >= reader.peers.len()) {
            return Err(PyValueError::new_err(format!(
                "there are {} peers, and the turn is none's",
                reader.peers.len()
            )));
        }
        if self.on_demand {
            reader.stream = Stream::new(epoch, passed);
            self.signs.pass.store(u64::from(passed), Relaxed);
            drop(self.books.with(py, |books| books.begin(&reader.starts))); // who asks before the stream begins
        } else {
            reader.begin(py, &self.signs, Stream::first(epoch));
            if let Some(turn) = turn {
                reader.collecting.begin_at(turn);
                self.books.with(py, |books| books.begin_at(turn));
            }
        }
        self.signs.stopped.store(false, Relaxed);
        Ok(())
    }

    /// Says who knows how many items the user was given: `delivery` does; None: nobody.
    fn follow(&self, delivery: Option<Bound<'_, Delivery>>) -> PyResult<()> {
        let given = delivery.map_or(Given::Unknown, |delivery| Given::Counted(delivery.get().given(), 0));
        self.reader()?.given = given;
        Ok(())
    }

    /// Has it told by who tells `other`, whose place this one takes in an epoch of which `before` items were delivered.
    fn follow_as(&self, other: &Self, before: u64) -> PyResult<()> {
        let given = match &other.reader()?.given {
            Given::Counted(given, _) => Given::Counted(Arc::clone(given), before),
            Given::All => Given::All,
            Given::Unknown => Given::Unknown,
        };
        self.reader()?.given = given;
        Ok(())
    }

    /// Where the peers were when so many items of the epoch had been delivered here, or are now: (by peer: what was given, the newest
    /// snapshot before that; whose turn it was; the dispatching process's snapshot that fits). None where that is too long ago. At any
    /// time, while somebody waits, too; whoever counts in Python what was delivered, to ask for so many ago, counts too late.
    #[pyo3(signature = (delivered=None))]
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn places(
        &self,
        py: Python<'_>,
        delivered: Option<u64>,
    ) -> Option<(Vec<(Entry, Option<Kept>)>, usize, Option<KeptDealt>)> {
        self.books.with(py, |books| {
            let back = delivered.map_or(Some(0), |delivered| books.total().checked_sub(delivered))?;
            let (places, turn) = books.places(back)?;
            let shares: Vec<_> =
                places.iter().map(|place| place.snapshot.map(|one| one.share).unwrap_or_default()).collect();
            let dealt = books.dealt_before(&shares).map(|one| kept_dealt(py, one));
            let places = places.iter().map(|place| (entry(place.given), place.snapshot.map(|one| kept(py, one))));
            Some((places.collect(), turn, dealt))
        })
    }

    /// Waits until each peer has sent a snapshot as the first unit of the epoch, or something else: no longer than one would wait
    /// for an item.
    fn await_snapshots(&self, py: Python<'_>, dealt: bool) -> PyResult<()> {
        let mut held = self.reader()?;
        held.await_snapshots(py, &self.signs, dealt)
    }

    /// In a worker: waits, but not longer than until a command comes, for the snapshot with which the dispatching process begins
    /// the epoch, to be passed on.
    fn await_relayed(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        let mut held = self.reader()?;
        held.await_relayed(py, Stream::first(epoch))
    }

    /// Items delivered since the epoch began here.
    fn delivered(&self, py: Python<'_>) -> u64 {
        self.books.with(py, |books| books.total())
    }

    /// Puts snapshots of an earlier run into the books: those that this run goes on from.
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

    /// What was read of a worker's share: (pass, (items, checksum)).
    fn share(&self, py: Python<'_>) -> (u64, Entry) {
        (self.signs.pass.load(Relaxed), self.books.with(py, |books| entry(books.taken(0))))
    }

    /// Tells the peers that no more of this epoch is wanted, whether or not it was read.
    fn finish_epoch(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        self.signs.stopped.store(true, Relaxed);
        let mut held = self.reader_once_left(py)?;
        held.peers.iter_mut().for_each(|peer| peer.consumer.finish(epoch));
        Ok(())
    }

    /// Lets each peer run `window` items ahead from now on. False, and nothing has changed, while another thread reads.
    fn set_window(&self, window: u64) -> bool {
        let Some(mut held) = self.reader.try_hold() else { return false };
        let reader = &mut *held;
        reader.window = window;
        if !reader.paused && self.owner.is_this() {
            reader.peers.iter_mut().for_each(|peer| peer.consumer.set_window(window));
        }
        true
    }

    /// Lets nobody run ahead any further; what was sent stays. May be called at any time, while another thread reads, too.
    fn pause(&self) {
        self.set_paused(true);
    }

    /// Lets everybody run ahead again.
    fn resume(&self) {
        self.set_paused(false);
    }

    /// Ends the epoch on this side: no item of it will be returned any more, and nobody makes one.
    ///
    /// May be called at any time, also by a signal handler or a thread while another reads.
    fn stop(&self) {
        self.signs.stopped.store(true, Relaxed);
        self.set_paused(true);
    }

    /// Takes in what some peers have sent, and lets them make more, if another one waits for the dispatching process, which
    /// may wait for these.
    ///
    /// To be called while main waits for anything else than an item, again and again; then once with `done`.
    fn relieve(&self, py: Python<'_>, done: bool) -> PyResult<()> {
        let Some(mut held) = self.reader.try_hold() else { return Ok(()) }; // who reads does it himself
        let reader = &mut *held;
        if done {
            reader.peers.iter_mut().for_each(|peer| peer.consumer.settle());
            return Ok(());
        }
        // Whether something of it is there does not matter: we wait for its answer, which it gives behind its next item.
        let starving: Vec<bool> = reader.peers.iter().map(|peer| peer.consumer.starves()).collect();
        while let Some(peer) = reader.next_to_take_in(&starving) {
            reader.take_in(py, peer)?;
        }
        if starving.contains(&true) {
            let others = reader.peers.iter_mut().zip(starving).filter(|(_, starves)| !starves);
            others.for_each(|(peer, _)| peer.consumer.relieve());
        }
        Ok(())
    }

    /// Items taken from each peer in this epoch.
    fn taken(&self) -> PyResult<Vec<u64>> {
        Ok(self.reader()?.peers.iter().map(|peer| peer.consumer.taken()).collect())
    }

    /// Bytes of shared memory that received items hold, by peer.
    fn leased(&self) -> PyResult<Vec<u64>> {
        Ok(self.reader()?.peers.iter().map(|peer| peer.consumer.leased()).collect())
    }

    /// Tells the sender that `count` messages were dealt with, and in which place (see `Link.obeyed_at`).
    #[pyo3(signature = (count, place = 0))]
    fn acknowledge(&self, count: u64, place: u64) -> PyResult<()> {
        self.reader()?.peers[0].consumer.acknowledge(count, place);
        Ok(())
    }

    /// An iterator over the items of the epoch in force. One that is left over from an earlier epoch takes nothing.
    fn __iter__(slf: Bound<'_, Self>) -> PyResult<ItemStream> {
        let collector = slf.get();
        let epoch = collector.signs.epoch.load(Relaxed) as u32;
        let pass = u64::from(!collector.on_demand);
        Ok(ItemStream::new(slf.unbind(), epoch, pass))
    }

    /// Waits for a message from `peer`, passing over what belongs to earlier epochs; `seconds` is the longest wait.
    ///
    /// Items in between are lost: this is for a peer that sends none.
    #[pyo3(signature = (peer, seconds = None))]
    fn receive<'py>(&self, py: Python<'py>, peer: usize, seconds: Option<f64>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.owner.check()?;
        let mut held = self.reader()?;
        let reader = &mut *held;
        let limit = seconds.map(duration);
        let started = Instant::now();
        let expired = || limit.is_some_and(|limit| started.elapsed() >= limit);
        loop {
            let mut unit = Unit::default();
            while reader.peers[peer].consumer.take(&mut unit).map_err(errors::take)? {
                if unit.kind & kind::WHAT == kind::MESSAGE {
                    return decode(py, &unit, true).map(Some);
                }
            }
            if expired() {
                return Ok(None);
            }
            let Reader { peers, own, idle, .. } = &mut *reader;
            let consumer = &mut peers[peer].consumer;
            wait_until(py, own, idle.as_ref(), || consumer.readable().unwrap_or(true) || expired(), || (), |_| Ok(()))?;
        }
    }

    /// Looks at nothing while somebody reads: he holds a reference, so this is no garbage. The lock is taken and let go
    /// with the GIL held alone, which the collector of garbage holds, so that all its passes find the same.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(reader) = self.reader.try_hold() else { return Ok(()) };
        visit.call(&reader.on_exit)?;
        visit.call(reader.replacing.as_ref().map(|replacing| &replacing.on_death))?;
        visit.call(reader.replacing.as_ref().map(|replacing| &replacing.on_replace))?;
        visit.call(&reader.on_error)?;
        visit.call(&reader.on_surplus)?;
        visit.call(reader.stall.as_ref().map(|stall| &stall.on_stall))?;
        visit.call(reader.interrupt.as_ref().map(|(_, exception, _)| exception))
    }

    fn __clear__(&self) {
        let cleared = self.reader.try_hold().map(|mut reader| {
            let callbacks = (reader.on_exit.take(), reader.replacing.take(), reader.on_surplus.take());
            (callbacks, reader.interrupt.take(), reader.stall.take())
        });
        drop(cleared); // outside the lock: whatever that runs may come back here
    }
}

impl Collector {
    fn set_paused(&self, paused: bool) {
        self.signs.paused.store(paused, Relaxed);
        match self.reader.try_hold() {
            Some(mut held) if self.owner.is_this() => held.heed(&self.signs),
            Some(_) => {} // the peers are our parent's
            // Who reads will see it.
            None => {
                self.signs.own.ring();
            }
        }
    }

    /// The next item of an epoch's pass: 0 before the first item was asked for, which begins one.
    pub(super) fn next<'py>(
        &self,
        py: Python<'py>,
        epoch: u32,
        pass: &AtomicU64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.owner.check()?;
        let mut held = self.reader()?;
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
        reader.heed(&self.signs);
        next
    }

    /// A share that is left before its end must not hold up those of others.
    pub(super) fn leave(&self, epoch: u32, pass: u64) {
        if !self.on_demand || pass == 0 {
            return;
        }
        // Where somebody else reads, that is a later pass, which has told the sender already.
        if let Some(mut held) = self.reader.try_hold()
            && self.owner.is_this()
            && u64::from(held.stream.pass()) == pass
            && !self.signs.is_over(epoch)
        {
            held.peers.iter_mut().for_each(|peer| peer.consumer.leave());
        }
    }
}

/// An iterator over the items that a `Collector` receives in one epoch; of a worker's share, in one pass.
#[pyclass(frozen, module = "torchdata._native")]
pub struct ItemStream {
    collector: Py<Collector>,
    epoch: u32,
    /// The pass; 0 before the first item was asked for.
    pass: AtomicU64,
}

impl ItemStream {
    pub(super) fn new(collector: Py<Collector>, epoch: u32, pass: u64) -> Self {
        Self { collector, epoch, pass: AtomicU64::new(pass) }
    }
}

#[pymethods]
impl ItemStream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.collector.get().next(py, self.epoch, &self.pass)
    }

    /// Appends the next item to a list. Where a signal handler raises, it lies there, or was not taken.
    fn next_into(&self, hand: &Bound<'_, PyList>) -> PyResult<()> {
        let item = self.collector.get().next(hand.py(), self.epoch, &self.pass)?;
        hand.append(item.ok_or_else(|| PyStopIteration::new_err(()))?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.collector)
    }
}

impl Drop for ItemStream {
    fn drop(&mut self) {
        self.collector.get().leave(self.epoch, *self.pass.get_mut());
    }
}
