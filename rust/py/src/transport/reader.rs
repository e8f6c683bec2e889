//! What the thread that receives needs: the peers, whose turn it is, what was taken in, who has died.
//!
//! Owned by a [`Collector`](super::collector::Collector), which hands it to one thread at a time. What is decided stands in
//! `torchdata_core::protocol::Collecting`; here it is carried out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use torchdata_core::link::consumer::{Buffer, Consumer, Unit};
use torchdata_core::link::{Announcer, Probe};
use torchdata_core::process::board::BellRef;
use torchdata_core::protocol::{Account, Books, Collecting, Next, Stream};
use torchdata_core::stats::{PageRef, WaitRef, add};
use torchdata_core::trace::Kind;

use super::kinds as kind;
use super::snapshots::{self, Content, Opened, Relay, Relayed};
use super::waiting::wait_among;
use super::watched::{Mortal, Replacing};
use crate::codec;
use crate::errors;
use crate::gil_cell::GilCell;
use crate::trace::{self, Origin};

/// What others tell the thread that reads, which looks at it in each wait.
pub struct Signs {
    /// The epoch in force. Who reads for another one is late.
    pub epoch: AtomicU64,
    /// No item of the epoch is to be returned any more.
    pub stopped: AtomicBool,
    /// Nobody is to run ahead.
    pub paused: AtomicBool,
    /// The pass that is read.
    pub pass: AtomicU64,
    pub own: BellRef,
}

impl Signs {
    /// Whether whoever reads for `epoch` is to leave.
    #[inline]
    pub fn is_over(&self, epoch: u32) -> bool {
        self.stopped.load(Relaxed) || self.epoch.load(Relaxed) != u64::from(epoch)
    }
}

/// A unit that was taken out of its ring.
#[derive(Default)]
pub struct Taken {
    pub unit: Unit,
    /// Whether it was counted: its sender may have made another one for it.
    pub counted: bool,
}

/// One sender, as its consumer knows it.
pub struct Peer {
    pub consumer: Consumer,
    /// Units that were taken out of the ring before their turn, or could not be decoded yet.
    pub taken_in: VecDeque<Taken>,
}

impl Peer {
    /// Whether there is something to deliver. A corrupted ring counts as ready: taking from it reports the error.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        !self.taken_in.is_empty() || self.has_arrived()
    }

    pub fn has_arrived(&mut self) -> bool {
        self.consumer.readable().unwrap_or(true)
    }
}

/// What the reading thread needs.
pub struct Reader {
    pub peers: Vec<Peer>,
    pub collecting: Collecting,
    pub stream: Stream,
    pub window: u64,
    /// Whether the peers were told to halt.
    pub paused: bool,
    pub own: BellRef,
    /// Processes whose end while we wait is a fault; the index tells `on_exit` which.
    pub watches: Vec<(usize, Mortal)>,
    /// The one that was found to have ended.
    pub dead: Option<usize>,
    /// Called with the index of a watched process that has ended; raises.
    pub on_exit: Option<Py<PyAny>>,
    /// Called instead where others take the places of those that have died (see `replacing.rs`).
    pub replacing: Option<Replacing>,
    /// Called with (peer, description) of a failure; raises.
    pub on_error: Py<PyAny>,
    /// Called with (waited for, taken in, bytes) when main holds more than it should; warns.
    pub on_surplus: Option<Py<PyAny>>,
    /// Bytes of units that were taken in before their turn, the most that are taken in silently, and whether it was said.
    pub surplus: u64,
    pub most_surplus: u64,
    pub said: bool,
    /// In a worker: the control link, the exception class to raise when main has ordered something else, and the way to tell
    /// main that this process waits for the dispatching one.
    pub interrupt: Option<(Probe, Py<PyAny>, Announcer)>,
    pub timeout: Option<Duration>,
    /// When the wait for the next item began.
    pub waiting: Option<Instant>,
    /// What the timeout's message calls the peers.
    pub name: String,
    /// The unit taken last, or a place for the next.
    pub current: Taken,
    /// How far it has come with each peer, and their snapshots.
    pub books: Arc<GilCell<Books<Content>>>,
    /// In a worker: where snapshots of the dispatching process wait to be passed on.
    pub relay: Arc<Relay>,
    /// How many items the user was given, where that is told.
    pub given: Given,
    /// Where the next stream begins.
    pub starts: Vec<Account>,
    /// By peer: where waits for its items are counted. Empty where nobody counts them.
    pub meters: Vec<WaitRef>,
    /// Where waits for messages are counted.
    pub idle: Option<WaitRef>,
    /// In main: its page, and whether no item of this epoch has come yet.
    pub page: Option<PageRef>,
    pub fresh: bool,
    pub stall: Option<Stall>,
    /// The stream that was begun for the sake of its first snapshot, and of which no item was asked for yet.
    pub looked_into: Option<Stream>,
    /// Who this is in a trace.
    pub origin: Origin,
}

/// Who knows how many of the delivered items the user was given.
pub enum Given {
    /// All of them.
    All,
    /// So many, of which so many were delivered before the first of ours.
    Counted(Arc<AtomicU64>, u64),
    /// Nobody knows.
    Unknown,
}

impl Given {
    /// How many of `total` the user was not given yet.
    #[inline]
    pub fn lag(&self, total: u64) -> Option<u64> {
        match self {
            Given::All => Some(0),
            Given::Counted(given, before) => Some((before + total).saturating_sub(given.load(Relaxed))),
            Given::Unknown => None,
        }
    }
}

/// What happens where no item comes for long.
pub struct Stall {
    pub patience: Duration,
    /// How long the wait is to be when `on_stall` is called next.
    pub next: Duration,
    pub on_stall: Py<PyAny>,
}

impl Reader {
    pub fn begin_epoch(&mut self, window: u64) {
        self.window = window;
        self.waiting = None;
        self.surplus = 0;
        self.said = false;
        self.looked_into = None;
        self.peers.iter_mut().for_each(|peer| peer.taken_in.clear());
    }

    pub fn begin(&mut self, py: Python<'_>, signs: &Signs, stream: Stream) {
        let looked_into = std::mem::take(&mut self.looked_into) == Some(stream);
        self.stream = stream;
        signs.pass.store(u64::from(stream.pass()), Relaxed);
        let starts = std::mem::take(&mut self.starts);
        drop(self.books.with(py, |books| books.begin(&starts)));
        self.paused = false;
        self.fresh = self.page.is_some();
        self.collecting.begin();
        let window = self.window;
        for peer in &mut self.peers {
            if looked_into {
                peer.consumer.set_window(window);
                continue;
            }
            peer.taken_in.clear();
            peer.consumer.begin(stream, window);
        }
    }

    /// In a worker: waits until the snapshot with which the dispatching process begins a stream has come, to be passed on. The
    /// stream itself is not asked for yet. Another unit that comes first stays to be read.
    pub fn await_relayed(&mut self, py: Python<'_>, stream: Stream) -> PyResult<()> {
        self.looked_into = Some(stream);
        self.peers[0].consumer.begin(stream, 0);
        while self.peers[0].taken_in.is_empty() && !self.relay.waits() {
            if self.take(0)? {
                if snapshots::is_snapshot(self.current.unit.kind) {
                    self.keep(py, 0)?;
                } else {
                    self.hold(0);
                }
                continue;
            }
            let Self { peers, own, interrupt, meters, .. } = self;
            let ordered = || interrupt.as_ref().is_some_and(|(probe, ..)| probe.pending());
            if ordered() {
                break;
            }
            let dispatching = &mut peers[0];
            wait_among(py, own, meters.first(), None, || dispatching.has_arrived() || ordered(), || (), |_| Ok(()))?;
        }
        Ok(())
    }

    /// Tells the peers to halt or to go on, as others have asked.
    pub fn heed(&mut self, signs: &Signs) {
        let paused = signs.paused.load(Relaxed);
        if paused != self.paused {
            self.paused = paused;
            let window = if paused { 0 } else { self.window };
            self.peers.iter_mut().for_each(|peer| peer.consumer.set_window(window));
        }
    }

    pub fn next<'py>(&mut self, py: Python<'py>, signs: &Signs, epoch: u32) -> PyResult<Option<Bound<'py, PyAny>>> {
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
                Next::Fail if self.replacing.is_some() => {
                    self.replace_dead(py, Vec::new())?;
                    continue;
                }
                Next::Fail => return Err(self.bereaved(py)),
                Next::TakeIn(_) | Next::Wait => {
                    self.wait(py, signs, epoch)?;
                    continue;
                }
            };
            if !self.take(peer)? {
                continue; // leftovers of an older epoch, or fragments
            }
            self.waiting = None;
            if self.fresh {
                self.fresh = false;
            }
            match self.current.unit.kind & kind::WHAT {
                kind::ITEM => return self.deliver(py, peer).map(Some),
                kind::END => {
                    self.collecting.end(peer);
                    self.books.with(py, |books| books.end(peer));
                }
                unit_kind if snapshots::is_snapshot(unit_kind) => self.keep(py, peer)?,
                kind::ERROR => {
                    let description = decode(py, &self.current.unit, self.may_lease(peer));
                    // It stays: whoever asks again, after a signal handler has raised meanwhile perhaps, gets it again.
                    self.hold(peer);
                    self.on_error.call1(py, (peer, description?))?;
                    return Ok(None); // it was to raise
                }
                _ => {} // an answer that nobody waits for any more
            }
        }
        if signs.epoch.load(Relaxed) == u64::from(epoch) {
            return Ok(None); // somebody has shut the loader down
        }
        Err(PyRuntimeError::new_err(
            "the epoch was given up while an item of it was waited for: the loader was to begin another one",
        ))
    }

    /// Keeps the snapshot that the current unit is.
    fn keep(&mut self, py: Python<'_>, peer: usize) -> PyResult<()> {
        self.keep_unit(py, peer, &self.current.unit)?;
        self.current.unit.buffers.clear();
        Ok(())
    }

    /// Keeps a snapshot.
    pub fn keep_unit(&self, py: Python<'_>, peer: usize, unit: &Unit) -> PyResult<()> {
        if self.interrupt.is_some() {
            self.relay.put(Relayed::of(unit)?);
        } else {
            let opened = Opened::read(unit)?;
            let of_dispatcher = unit.kind & kind::WHAT == kind::RELAYED;
            let (dealt, snapshot) =
                if of_dispatcher { (Some(opened.dealt(py)?), None) } else { (None, opened.snapshot(py)?) };
            let given = &self.given;
            let superfluous = self.books.with(py, |books| {
                let lag = given.lag(books.total());
                let dealt = dealt.map(|dealt| books.keep_dealt(dealt)).unwrap_or_default();
                (dealt, snapshot.map(|snapshot| books.keep(peer, snapshot, lag)))
            });
            drop(superfluous); // outside: dropping an object may run anything
        }
        Ok(())
    }

    /// Waits until each peer's first unit of the epoch has come, and keeps those that are snapshots; `dealt`: also for that of the
    /// dispatching process, which the first peer passes on. A peer sends it where it would begin with its first item, so who reads
    /// waits no longer than for that; what ends the wait for an item ends this one, and the next read says what it was.
    pub fn await_snapshots(&mut self, py: Python<'_>, signs: &Signs, dealt: bool) -> PyResult<()> {
        let (began, epoch) = (Instant::now(), signs.epoch.load(Relaxed) as u32);
        let timeout = self.timeout;
        if let Some(stall) = &mut self.stall {
            stall.next = stall.patience;
        }
        for peer in 0..self.peers.len() {
            // One that has taken another's place may be the only one that is waited for.
            let is_there = |reader: &Self| {
                reader.books.with(py, |books| books.has_snapshot(peer) && (!dealt || peer > 0 || books.has_dealt()))
            };
            while self.peers[peer].taken_in.is_empty() && !is_there(self) {
                if self.take(peer)? {
                    if snapshots::is_snapshot(self.current.unit.kind) {
                        self.keep(py, peer)?;
                    } else {
                        self.hold(peer);
                    }
                    continue;
                }
                let Self { peers, own, watches, stall, .. } = self;
                let is_left = || signs.is_over(epoch) || timeout.is_some_and(|limit| began.elapsed() >= limit);
                let is_over = || is_left() || Mortal::any_died(watches);
                if is_over() {
                    return Ok(());
                }
                let arrived = &mut peers[peer];
                wait_among(
                    py,
                    own,
                    None,
                    Some(&|| Mortal::any_died(watches)),
                    || arrived.has_arrived() || is_left(),
                    || (),
                    |py| {
                        let waited = began.elapsed();
                        if let Some(stall) = stall.as_mut().filter(|stall| waited >= stall.next) {
                            stall.next = stall.next.saturating_mul(2);
                            stall.on_stall.call1(py, (peer, waited.as_secs_f64()))?;
                        }
                        match Mortal::any_died(watches) {
                            true => Err(PyRuntimeError::new_err("a process has died")),
                            false => Ok(()),
                        }
                    },
                )
                .or_else(|error| if Mortal::any_died(watches) { Ok(()) } else { Err(error) })?;
            }
        }
        Ok(())
    }

    /// Puts the current unit back.
    fn hold(&mut self, peer: usize) {
        let taken = std::mem::take(&mut self.current);
        self.surplus += weight(&taken);
        self.peers[peer].taken_in.push_front(taken);
    }

    /// Makes the next unit of a peer the current one, if there is one.
    #[inline]
    fn take(&mut self, peer: usize) -> PyResult<bool> {
        let Peer { consumer, taken_in } = &mut self.peers[peer];
        if let Some(taken) = taken_in.pop_front() {
            self.surplus = self.surplus.saturating_sub(weight(&taken));
            self.current = taken;
            return Ok(true);
        }
        self.current.counted = false;
        consumer.take(&mut self.current.unit).map_err(errors::take)
    }

    /// Makes an item of the current unit; one that cannot be made now (a signal handler has raised) is kept for the next time.
    #[inline]
    fn deliver<'py>(&mut self, py: Python<'py>, peer: usize) -> PyResult<Bound<'py, PyAny>> {
        let may_lease = self.may_lease(peer);
        let traced = trace::begin();
        match decode(py, &self.current.unit, may_lease) {
            Ok(item) => {
                if let Some(began) = traced {
                    self.trace_received(py, began, peer);
                }
                if !may_lease && !self.current.unit.buffers.is_empty() {
                    self.count_copies(peer);
                }
                self.collecting.advance();
                let (given, digest) = (&self.given, self.current.unit.digest);
                self.books.with(py, |books| books.deliver(peer, digest, |total| given.lag(total)));
                if !self.current.counted {
                    self.peers[peer].consumer.item_taken();
                }
                self.current.unit.buffers.clear(); // the item alone keeps what it leases
                Ok(item)
            }
            Err(error) => {
                self.hold(peer);
                Err(error)
            }
        }
    }

    /// The item is known by its number in the stream, whichever process has made those before.
    #[cold]
    fn trace_received(&self, py: Python<'_>, began: u64, peer: usize) {
        let number = self.books.with(py, |books| books.taken(peer)).items;
        self.origin.crossed(Kind::Received, began, peer, self.peers[peer].consumer.stream().raw(), number);
    }

    #[cold]
    fn count_copies(&self, peer: usize) {
        let flow = self.peers[peer].consumer.flow();
        let leased = self.current.unit.buffers.iter().filter(|buffer| matches!(buffer, Buffer::Leased(_)));
        add(&flow.copies, leased.clone().count() as u64);
        add(&flow.copied, leased.map(Buffer::len).sum::<usize>() as u64);
    }

    /// What is leased already includes the unit; where that is over the limit, its buffers are copied out.
    fn may_lease(&self, peer: usize) -> bool {
        !self.peers[peer].consumer.should_copy(0)
    }

    /// The peer of whom to take in what has arrived, because another one starves.
    pub fn next_to_take_in(&mut self, starving: &[bool]) -> Option<usize> {
        let Self { peers, collecting, .. } = self;
        collecting.to_take_in(|peer| peers[peer].has_arrived(), |peer| starving[peer])
    }

    /// Takes one unit of a peer out of its ring before its turn.
    pub fn take_in(&mut self, py: Python<'_>, peer: usize) -> PyResult<()> {
        let may_lease = self.may_lease(peer);
        let Peer { consumer, taken_in } = &mut self.peers[peer];
        let mut unit = Unit::default();
        if !consumer.take(&mut unit).map_err(errors::take)? {
            return Ok(());
        }
        if !may_lease {
            // The sender's memory is for what is in flight: this may stay for long.
            let leased = unit.buffers.iter().filter(|buffer| matches!(buffer, Buffer::Leased(_)));
            add(&consumer.flow().copies, leased.clone().count() as u64);
            add(&consumer.flow().copied, leased.map(Buffer::len).sum::<usize>() as u64);
            let buffers = std::mem::take(&mut unit.buffers);
            unit.buffers = py.detach(|| buffers.into_iter().map(Buffer::into_owned).collect());
        }
        if unit.kind & kind::WHAT == kind::ITEM {
            consumer.item_taken_in();
        }
        let taken = Taken { unit, counted: true };
        self.surplus += weight(&taken);
        taken_in.push_back(taken);
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
        let Self { meters, page, fresh, stall, origin, .. } = self;
        let traced = trace::begin();
        if waiting.is_none()
            && let Some(stall) = stall
        {
            stall.next = stall.patience;
        }
        let began = *waiting.get_or_insert_with(Instant::now);
        let wanted = collecting.turn();
        let meter = if *fresh { None } else { meters.get(wanted.unwrap_or(0)) };
        if let (true, Some(page)) = (*fresh, page) {
            page.set_first_whom(wanted);
        }
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
        // A worker's watches are none: it ends with main, and is told by main that the dispatching process has died.
        let bereft = || Mortal::any_died(watches);
        let bereft: Option<&(dyn Fn() -> bool + Sync)> = if watches.is_empty() { None } else { Some(&bereft) };
        let waited = wait_among(py, own, meter, bereft, ready, asleep, |py| {
            asleep(); // once more, should it have been written over
            let now = Instant::now();
            if Mortal::any_died(watches) {
                *dead = watches.iter().find(|(_, process)| process.has_died()).map(|&(index, _)| index);
            }
            if let Some(stall) = stall {
                let waited = now - began;
                if *paused {
                    stall.next = waited.saturating_add(stall.patience); // nobody is to send anything
                } else if waited >= stall.next {
                    stall.next = stall.next.saturating_mul(2);
                    stall.on_stall.call1(py, (wanted, waited.as_secs_f64()))?;
                }
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
        if let (Some(began), Some(wanted)) = (traced, wanted) {
            origin.waited(Kind::WaitForItem, began, wanted);
        }
        if dead.is_some() {
            // What was published before the death goes first, as far as the turns go.
            self.collecting.bereave();
            return Ok(());
        }
        if waited.as_ref().is_err_and(|error| error.is_instance_of::<PyTimeoutError>(py)) {
            self.waiting = None; // whoever asks again waits as long again
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
pub fn weight(taken: &Taken) -> u64 {
    taken.unit.buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>() + taken.unit.payload.len() as u64
}

/// Builds the object of a unit.
#[inline]
pub fn decode<'py>(py: Python<'py>, unit: &Unit, may_lease: bool) -> PyResult<Bound<'py, PyAny>> {
    match unit.buffers.split_last() {
        Some((long, buffers)) if unit.kind & kind::PAYLOAD_IN_BUFFER != 0 => {
            // Private, as short ones are: what is decoded cannot change under the decoder.
            match long {
                Buffer::Owned(payload) => codec::decode(py, payload, buffers, may_lease),
                Buffer::Leased(lease) => {
                    let payload = py.detach(|| lease.private_copy()).map_err(errors::memory)?;
                    codec::decode(py, &payload, buffers, may_lease)
                }
            }
        }
        _ => codec::decode(py, &unit.payload, &unit.buffers, may_lease),
    }
}
