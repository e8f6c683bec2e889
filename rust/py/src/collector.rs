//! The receiving side: takes the items of all workers in turn, or a worker's share from the dispatching process.
//!
//! Runs in the consumer's process, in whichever thread asks for the next item: the main thread, or the thread of a pipe that
//! reads ahead. What is decided stands in `torchdata_core::protocol::Collecting`; here it is carried out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use torchdata_core::bell::BellRef;
use torchdata_core::consumer::{Buffer, Consumer, Unit};
use torchdata_core::fork;
use torchdata_core::link::{Announcer, Probe};
use torchdata_core::liveness::Watch;
use torchdata_core::protocol::{Collecting, Next, Stream};

use crate::codec;
use crate::errors;
use crate::sender::{bell, kind};
use crate::shared::{PyBellBoard, PyLink};
use crate::waiting::{duration, wait_until};

/// How often peers are looked after while waiting.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// The consumer's ends of links, read as one.
///
/// One thread reads at a time; any thread, and a signal handler that runs while the reader waits, may stop or pause it, or begin
/// another epoch. Whoever reads then is told that its epoch is over, and takes nothing more.
#[pyclass(frozen, module = "torchdata._native")]
pub struct Collector {
    reader: Mutex<Reader>,
    /// The thread that holds the reader.
    holder: Mutex<Option<ThreadId>>,
    signs: Signs,
    /// Whether streams begin when somebody reads them (a worker's share), not with the epoch.
    on_demand: bool,
    /// The process that reads; a forked child must not take what is its parent's.
    generation: u64,
}

/// What others tell the thread that reads, which looks at it in each wait.
struct Signs {
    /// The epoch in force. Who reads for another one is late.
    epoch: AtomicU64,
    /// No item of the epoch is to be returned any more.
    stopped: AtomicBool,
    /// Nobody is to run ahead.
    paused: AtomicBool,
    own: BellRef,
}

impl Signs {
    /// Whether whoever reads for `epoch` is to leave.
    #[inline]
    fn is_over(&self, epoch: u32) -> bool {
        self.stopped.load(Relaxed) || self.epoch.load(Relaxed) != u64::from(epoch)
    }
}

/// A unit that was taken out of its ring.
struct Taken {
    unit: Unit,
    payload: Vec<u8>,
    /// Whether it was counted: its sender may have made another one for it.
    counted: bool,
}

/// One sender, as its consumer knows it.
struct Peer {
    consumer: Consumer,
    /// Units that were taken out of the ring before their turn, or could not be decoded yet.
    held: VecDeque<Taken>,
}

impl Peer {
    /// Whether there is something to deliver. A corrupted ring counts as ready: taking from it reports the error.
    #[inline]
    fn is_ready(&mut self) -> bool {
        !self.held.is_empty() || self.has_arrived()
    }

    fn has_arrived(&mut self) -> bool {
        self.consumer.readable().unwrap_or(true)
    }
}

/// What the reading thread needs.
struct Reader {
    peers: Vec<Peer>,
    collecting: Collecting,
    stream: Stream,
    window: u64,
    /// Whether the peers were told to halt.
    paused: bool,
    own: BellRef,
    /// Processes whose end while we wait is a fault; the index tells `on_exit` which.
    watches: Vec<(usize, Watch)>,
    /// The one that was found to have ended.
    dead: Option<usize>,
    /// Called with the index of a watched process that has ended; raises.
    on_exit: Option<Py<PyAny>>,
    /// Called with (peer, description) of a failure; raises.
    on_error: Py<PyAny>,
    /// Called with (waited for, taken in, bytes) when main holds more than it should; warns.
    on_surplus: Option<Py<PyAny>>,
    /// Bytes of units that were taken in before their turn, the most that are taken in silently, and whether it was said.
    surplus: u64,
    most_surplus: u64,
    said: bool,
    /// In a worker: the control link, the exception class to raise when main has ordered something else, and the way to tell
    /// main that this process waits for the dispatching one.
    interrupt: Option<(Probe, Py<PyAny>, Announcer)>,
    timeout: Option<Duration>,
    /// When the wait for the next item began.
    waiting: Option<Instant>,
    /// What the timeout's message calls the peers.
    name: String,
    payload: Vec<u8>,
}

/// The reader, held by this thread.
struct Held<'a> {
    reader: MutexGuard<'a, Reader>,
    holder: &'a Mutex<Option<ThreadId>>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *unpoisoned(self.holder.lock()) = None;
    }
}

/// An error in a forked child, which must not take what is its parent's.
fn check_process(generation: u64) -> PyResult<()> {
    if generation == fork::generation() {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(
        "this loader's workers belong to the parent of this process: make a DataLoader2 of its own here",
    ))
}

fn unpoisoned<T>(locked: Result<T, std::sync::PoisonError<T>>) -> T {
    locked.unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Collector {
    /// The reader, unless somebody else holds it.
    fn try_reader(&self) -> Option<Held<'_>> {
        let reader = match self.reader.try_lock() {
            Ok(reader) => reader,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        *unpoisoned(self.holder.lock()) = Some(thread::current().id());
        Some(Held { reader, holder: &self.holder })
    }

    /// The reader for somebody who reads.
    fn reader(&self) -> PyResult<Held<'_>> {
        self.try_reader().ok_or_else(|| {
            PyRuntimeError::new_err(
                "another thread is reading from this loader: a loader has one reader at a time (or a signal handler reads \
                 while the loop that it interrupted does)",
            )
        })
    }

    /// The reader for somebody who has told whoever reads to leave: waits until it has left.
    fn reader_once_left(&self, py: Python<'_>) -> PyResult<Held<'_>> {
        check_process(self.generation)?; // who reads may be a thread of our parent, which never leaves here
        let mut pause = Duration::from_micros(20);
        loop {
            if let Some(reader) = self.try_reader() {
                return Ok(reader);
            }
            if *unpoisoned(self.holder.lock()) == Some(thread::current().id()) {
                return Err(PyRuntimeError::new_err(
                    "an epoch cannot begin while this thread waits for an item of the last one (in a signal handler, say): \
                     leave the loop first",
                ));
            }
            self.signs.own.ring();
            py.detach(|| thread::sleep(pause));
            py.check_signals()?;
            pause = (pause * 2).min(Duration::from_millis(2));
        }
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
            ends.push(Peer { consumer, held: VecDeque::new() });
        }
        let own = bell(board, own)?;
        let signs = Signs {
            epoch: AtomicU64::new(0),
            stopped: AtomicBool::new(true),
            paused: AtomicBool::new(false),
            own: own.clone(),
        };
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
            on_error,
            on_surplus: None,
            surplus: 0,
            most_surplus: u64::MAX,
            said: false,
            interrupt: None,
            timeout: timeout.map(duration),
            waiting: None,
            name: name.to_owned(),
            payload: Vec::new(),
        };
        Ok(Self {
            reader: Mutex::new(reader),
            holder: Mutex::new(None),
            signs,
            on_demand,
            generation: fork::generation(),
        })
    }

    /// Watches processes: when one has ended while this side waits, `on_exit(index)` is called and must raise.
    fn watch(&self, processes: Vec<(usize, i32)>, on_exit: Py<PyAny>) -> PyResult<()> {
        let mut held = self.reader()?;
        let reader = &mut held.reader;
        reader.watches = processes
            .into_iter()
            .map(|(index, pid)| Watch::open(pid).map(|watch| (index, watch)))
            .collect::<Result<_, _>>()
            .map_err(errors::open)?;
        reader.on_exit = Some(on_exit);
        Ok(())
    }

    /// Calls `on_surplus(waited for, taken in, bytes)`, once an epoch, when items that were taken in before their turn take more
    /// than `most` bytes of this process's own memory.
    fn tell_surplus(&self, most: u64, on_surplus: Py<PyAny>) -> PyResult<()> {
        let mut held = self.reader()?;
        (held.reader.most_surplus, held.reader.on_surplus) = (most, Some(on_surplus));
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
        self.reader()?.reader.interrupt = Some((control.get().0.probe(), exception, announcer));
        Ok(())
    }

    /// Starts an epoch in which each peer may run `window` items ahead. To be called before the peers are told.
    ///
    /// Who still reads for an earlier one is told to leave, and waited for.
    fn start_epoch(&self, py: Python<'_>, epoch: u32, window: u64) -> PyResult<()> {
        self.signs.epoch.store(u64::from(epoch), Relaxed);
        let mut held = self.reader_once_left(py)?;
        let reader = &mut held.reader;
        self.signs.paused.store(false, Relaxed);
        reader.begin_epoch(window);
        if self.on_demand {
            reader.stream = Stream::new(epoch, 0);
        } else {
            reader.begin(Stream::first(epoch));
        }
        self.signs.stopped.store(false, Relaxed);
        Ok(())
    }

    /// Tells the peers that no more of this epoch is wanted, whether or not it was read.
    fn finish_epoch(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        self.signs.stopped.store(true, Relaxed);
        let mut held = self.reader_once_left(py)?;
        held.reader.peers.iter_mut().for_each(|peer| peer.consumer.finish(epoch));
        Ok(())
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
        let Some(mut held) = self.try_reader() else { return Ok(()) }; // who reads does it himself
        let reader = &mut held.reader;
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
        Ok(self.reader()?.reader.peers.iter().map(|peer| peer.consumer.taken()).collect())
    }

    /// Bytes of shared memory that received items hold, by peer.
    fn leased(&self) -> PyResult<Vec<u64>> {
        Ok(self.reader()?.reader.peers.iter().map(|peer| peer.consumer.leased()).collect())
    }

    /// Tells the sender that `count` messages were dealt with (see `Sender.wait_acknowledged`).
    fn acknowledge(&self, count: u64) -> PyResult<()> {
        self.reader()?.reader.peers[0].consumer.acknowledge(count);
        Ok(())
    }

    /// An iterator over the items of the epoch in force. One that is left over from an earlier epoch takes nothing.
    fn __iter__(slf: Bound<'_, Self>) -> PyResult<ItemStream> {
        let collector = slf.get();
        let epoch = collector.signs.epoch.load(Relaxed) as u32;
        let pass = AtomicU64::new(u64::from(!collector.on_demand));
        Ok(ItemStream { collector: slf.unbind(), epoch, pass })
    }

    /// Waits for a message from `peer`, passing over what belongs to earlier epochs; `seconds` is the longest wait.
    ///
    /// Items in between are lost: this is for a peer that sends none.
    #[pyo3(signature = (peer, seconds = None))]
    fn receive<'py>(&self, py: Python<'py>, peer: usize, seconds: Option<f64>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut held = self.reader()?;
        let reader = &mut *held.reader;
        let limit = seconds.map(duration);
        let started = Instant::now();
        let expired = || limit.is_some_and(|limit| started.elapsed() >= limit);
        loop {
            let Reader { peers, payload, .. } = &mut *reader;
            while let Some(unit) = peers[peer].consumer.take(payload).map_err(errors::corrupted)? {
                if unit.kind & !kind::PAYLOAD_IN_BUFFER == kind::MESSAGE {
                    return decode(py, &unit, payload, true).map(Some);
                }
            }
            if expired() {
                return Ok(None);
            }
            let Reader { peers, own, .. } = &mut *reader;
            let consumer = &mut peers[peer].consumer;
            wait_until(py, own, || consumer.readable().unwrap_or(true) || expired(), || (), |_| Ok(()))?;
        }
    }

    /// Looks at nothing while somebody reads: he holds a reference, so this is no garbage. The lock is taken and let go
    /// with the GIL held alone, which the collector of garbage holds, so that all its passes find the same.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(reader) = self.reader.try_lock() else { return Ok(()) };
        visit.call(&reader.on_exit)?;
        visit.call(&reader.on_error)?;
        visit.call(&reader.on_surplus)?;
        visit.call(reader.interrupt.as_ref().map(|(_, exception, _)| exception))
    }

    fn __clear__(&self) {
        let cleared = self
            .reader
            .try_lock()
            .map(|mut reader| (reader.on_exit.take(), reader.on_surplus.take(), reader.interrupt.take()));
        drop(cleared); // outside the lock: whatever that runs may come back here
    }
}

impl Collector {
    fn set_paused(&self, paused: bool) {
        self.signs.paused.store(paused, Relaxed);
        match self.try_reader() {
            Some(mut held) if self.generation == fork::generation() => held.reader.heed(&self.signs),
            Some(_) => {}                  // the peers are our parent's
            None => self.signs.own.ring(), // who reads will see it
        }
    }

    fn next<'py>(&self, py: Python<'py>, epoch: u32, pass: &AtomicU64) -> PyResult<Option<Bound<'py, PyAny>>> {
        check_process(self.generation)?;
        let mut held = self.reader()?;
        let reader = &mut *held.reader;
        if self.signs.epoch.load(Relaxed) != u64::from(epoch) {
            return Err(PyRuntimeError::new_err(
                "this iterator belongs to an epoch that was left: the loader has begun another one since",
            ));
        }
        if pass.load(Relaxed) == 0 {
            let next = reader.stream.next_pass();
            reader.begin(next);
            pass.store(u64::from(next.pass()), Relaxed);
        }
        if pass.load(Relaxed) != u64::from(reader.stream.pass()) {
            return Err(PyRuntimeError::new_err("this iterator was left for a later one over the same items"));
        }
        let next = reader.next(py, &self.signs, epoch);
        reader.heed(&self.signs);
        next
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

#[pymethods]
impl ItemStream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.collector.get().next(py, self.epoch, &self.pass)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.collector)
    }
}

impl Drop for ItemStream {
    /// A share that is left before its end must not hold up those of others.
    fn drop(&mut self) {
        let collector = self.collector.get();
        if !collector.on_demand || self.pass.load(Relaxed) == 0 {
            return;
        }
        // Where somebody else reads, that is a later pass, which has told the sender already.
        if let Some(mut held) = collector.try_reader()
            && collector.generation == fork::generation()
            && u64::from(held.reader.stream.pass()) == self.pass.load(Relaxed)
            && !collector.signs.is_over(self.epoch)
        {
            held.reader.peers.iter_mut().for_each(|peer| peer.consumer.leave());
        }
    }
}

impl Reader {
    fn begin_epoch(&mut self, window: u64) {
        self.window = window;
        self.waiting = None;
        self.surplus = 0;
        self.said = false;
        self.peers.iter_mut().for_each(|peer| peer.held.clear());
    }

    fn begin(&mut self, stream: Stream) {
        self.stream = stream;
        self.paused = false;
        self.collecting.begin();
        let window = self.window;
        for peer in &mut self.peers {
            peer.held.clear();
            peer.consumer.begin(stream, window);
        }
    }

    /// Tells the peers to halt or to go on, as others have asked.
    fn heed(&mut self, signs: &Signs) {
        let paused = signs.paused.load(Relaxed);
        if paused != self.paused {
            self.paused = paused;
            let window = if paused { 0 } else { self.window };
            self.peers.iter_mut().for_each(|peer| peer.consumer.set_window(window));
        }
    }

    fn next<'py>(&mut self, py: Python<'py>, signs: &Signs, epoch: u32) -> PyResult<Option<Bound<'py, PyAny>>> {
        while !signs.is_over(epoch) {
            let peers = &mut self.peers;
            let next = self.collecting.next(
                |peer| peers[peer].is_ready(),
                |_| false, // looked at in `wait`, where it matters
                |_| false,
            );
            let peer = match next {
                Next::Deliver(peer) => peer,
                Next::Over => return Ok(None),
                Next::Fail => return Err(self.bereaved(py)),
                Next::TakeIn(_) | Next::Wait => {
                    self.wait(py, signs, epoch)?;
                    continue;
                }
            };
            let Some(unit) = self.take(peer)? else { continue }; // leftovers of an older epoch, or fragments
            self.waiting = None;
            match unit.unit.kind & !kind::PAYLOAD_IN_BUFFER {
                kind::ITEM => return self.deliver(py, peer, unit).map(Some),
                kind::END => self.collecting.end(peer),
                kind::ERROR => {
                    let description = decode(py, &unit.unit, &unit.payload, self.may_lease(peer));
                    // It stays: whoever asks again, after a signal handler has raised meanwhile perhaps, gets it again.
                    self.hold(peer, unit);
                    self.on_error.call1(py, (peer, description?))?;
                    return Ok(None); // it was to raise
                }
                _ => {} // an answer that nobody waits for any more
            }
        }
        Err(PyRuntimeError::new_err(
            "the epoch was given up while an item of it was waited for: the loader was shut down, or begun anew",
        ))
    }

    /// Puts a unit back.
    fn hold(&mut self, peer: usize, taken: Taken) {
        self.surplus += weight(&taken);
        self.peers[peer].held.push_front(taken);
    }

    /// The next unit of a peer.
    #[inline]
    fn take(&mut self, peer: usize) -> PyResult<Option<Taken>> {
        let Peer { consumer, held } = &mut self.peers[peer];
        if let Some(taken) = held.pop_front() {
            self.surplus = self.surplus.saturating_sub(weight(&taken));
            return Ok(Some(taken));
        }
        let mut payload = std::mem::take(&mut self.payload);
        match consumer.take(&mut payload).map_err(errors::corrupted)? {
            Some(unit) => Ok(Some(Taken { unit, payload, counted: false })),
            None => {
                self.payload = payload;
                Ok(None)
            }
        }
    }

    /// Makes the item; one that cannot be made now (a signal handler has raised) is kept for the next time.
    #[inline]
    fn deliver<'py>(&mut self, py: Python<'py>, peer: usize, taken: Taken) -> PyResult<Bound<'py, PyAny>> {
        match decode(py, &taken.unit, &taken.payload, self.may_lease(peer)) {
            Ok(item) => {
                self.collecting.advance();
                if !taken.counted {
                    self.peers[peer].consumer.item_taken();
                }
                self.payload = taken.payload;
                Ok(item)
            }
            Err(error) => {
                self.hold(peer, taken);
                Err(error)
            }
        }
    }

    /// What is leased already includes the unit; where that is over the limit, its buffers are copied out.
    fn may_lease(&self, peer: usize) -> bool {
        !self.peers[peer].consumer.should_copy(0)
    }

    /// The peer of whom to take in what has arrived, because another one starves.
    fn next_to_take_in(&mut self, starving: &[bool]) -> Option<usize> {
        let Self { peers, collecting, .. } = self;
        collecting.to_take_in(|peer| peers[peer].has_arrived(), |peer| starving[peer])
    }

    /// Takes one unit of a peer out of its ring before its turn.
    fn take_in(&mut self, py: Python<'_>, peer: usize) -> PyResult<()> {
        let may_lease = self.may_lease(peer);
        let Peer { consumer, held } = &mut self.peers[peer];
        let mut payload = Vec::new();
        let Some(mut unit) = consumer.take(&mut payload).map_err(errors::corrupted)? else { return Ok(()) };
        if !may_lease {
            // The sender's memory is for what is in flight: this may stay for long.
            let buffers = std::mem::take(&mut unit.buffers);
            unit.buffers = py.detach(|| buffers.into_iter().map(Buffer::into_owned).collect());
        }
        if unit.kind & !kind::PAYLOAD_IN_BUFFER == kind::ITEM {
            consumer.item_taken_in();
        }
        let taken = Taken { unit, payload, counted: true };
        self.surplus += weight(&taken);
        held.push_back(taken);
        if self.surplus > self.most_surplus && !self.said {
            self.said = true;
            if let (Some(on_surplus), Some(current)) = (&self.on_surplus, self.collecting.turn()) {
                on_surplus.call1(py, (current, peer, self.surplus))?;
            }
        }
        Ok(())
    }

    fn wait(&mut self, py: Python<'_>, signs: &Signs, epoch: u32) -> PyResult<()> {
        let Self { peers, collecting, own, watches, dead, interrupt, timeout, name, waiting, paused, .. } = self;
        let began = *waiting.get_or_insert_with(Instant::now);
        let wanted = collecting.turn();
        // A damaged word ends the wait; the child finds no command then, and says so.
        let superseded = || interrupt.as_ref().is_some_and(|(probe, ..)| probe.is_superseded(epoch).unwrap_or(true));
        let announcer = interrupt.as_ref().map(|(.., announcer)| announcer);
        let mut todo = Next::Wait;
        let ready = || {
            let peers = RefCell::new(&mut *peers);
            todo = collecting.next(
                |peer| peers.borrow_mut()[peer].is_ready(),
                |peer| peers.borrow_mut()[peer].has_arrived(),
                |peer| peers.borrow()[peer].consumer.starves(),
            );
            todo != Next::Wait || signs.is_over(epoch) || signs.paused.load(Relaxed) != *paused || superseded()
        };
        let asleep = || announcer.iter().for_each(|announcer| announcer.starve(epoch));
        let mut looked = began;
        let waited = wait_until(py, own, ready, asleep, |_| {
            asleep(); // once more, should it have been written over
            let now = Instant::now();
            if now - looked >= LOOK_AFTER {
                looked = now;
                *dead = watches.iter().find(|(_, watch)| watch.exited()).map(|&(index, _)| index);
            }
            match timeout {
                _ if dead.is_some() => Err(PyRuntimeError::new_err("a process has died")), // worded by `on_exit`
                Some(limit) if now - began >= *limit => Err(PyTimeoutError::new_err(format!(
                    "no item came from {name} {} within {} s (the `timeout` of the reading service); its pipe is slower \
                     than that, or stuck",
                    wanted.map_or("?".to_owned(), |peer| peer.to_string()),
                    limit.as_secs_f64(),
                ))),
                _ => Ok(()),
            }
        });
        announcer.iter().for_each(|announcer| announcer.go_on());
        if dead.is_some() {
            // What was published before the death goes first, as far as the turns go.
            self.collecting.bereave();
            return Ok(());
        }
        waited?;
        if superseded()
            && let Some((_, exception, _)) = interrupt
        {
            return Err(PyErr::from_value(exception.bind(py).call0()?));
        }
        if let Next::TakeIn(peer) = todo {
            self.take_in(py, peer)?;
        }
        self.heed(signs);
        Ok(())
    }

    /// The error of a process that has died.
    fn bereaved(&self, py: Python<'_>) -> PyErr {
        let raised = match (&self.on_exit, self.dead) {
            (Some(on_exit), Some(index)) => on_exit.call1(py, (index,)),
            _ => Ok(py.None()),
        };
        raised.err().unwrap_or_else(|| PyRuntimeError::new_err("a process that the loader depends on has died"))
    }
}

/// Bytes of this process's own memory, and of a sender's, that a unit takes up.
fn weight(taken: &Taken) -> u64 {
    taken.unit.buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>() + taken.payload.len() as u64
}

/// Builds the object of a unit.
fn decode<'py>(py: Python<'py>, unit: &Unit, payload: &[u8], may_lease: bool) -> PyResult<Bound<'py, PyAny>> {
    match unit.buffers.split_last() {
        Some((long, buffers)) if unit.kind & kind::PAYLOAD_IN_BUFFER != 0 => {
            // Private, as short ones are: what is decoded cannot change under the decoder.
            match long {
                Buffer::Owned(payload) => codec::decode(py, payload, buffers, may_lease),
                Buffer::Leased(lease) => codec::decode(py, &py.detach(|| lease.private_copy()), buffers, may_lease),
            }
        }
        _ => codec::decode(py, payload, &unit.buffers, may_lease),
    }
}
