//! What the thread that receives needs: the peers, whose turn it is, what was taken in, who has died.
//!
//! Owned by a [`Collector`](super::collector::Collector), which hands it to one thread at a time. What is decided stands in
//! `torchdata_core::protocol::Collecting`; here it is carried out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use torchdata_core::link::consumer::{Buffer, Consumer, Unit};
use torchdata_core::link::{Announcer, Probe};
use torchdata_core::process::board::BellRef;
use torchdata_core::process::liveness::Watch;
use torchdata_core::protocol::{Collecting, Next, Stream};

use super::kinds as kind;
use super::waiting::wait_until;
use crate::codec;
use crate::errors;

/// How often peers are looked after while waiting.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// What others tell the thread that reads, which looks at it in each wait.
pub struct Signs {
    /// The epoch in force. Who reads for another one is late.
    pub epoch: AtomicU64,
    /// No item of the epoch is to be returned any more.
    pub stopped: AtomicBool,
    /// Nobody is to run ahead.
    pub paused: AtomicBool,
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
    unit: Unit,
    /// Whether it was counted: its sender may have made another one for it.
    counted: bool,
}

/// One sender, as its consumer knows it.
pub struct Peer {
    pub consumer: Consumer,
    /// Units that were taken out of the ring before their turn, or could not be decoded yet.
    pub held: VecDeque<Taken>,
}

impl Peer {
    /// Whether there is something to deliver. A corrupted ring counts as ready: taking from it reports the error.
    #[inline]
    pub fn is_ready(&mut self) -> bool {
        !self.held.is_empty() || self.has_arrived()
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
    pub watches: Vec<(usize, Watch)>,
    /// The one that was found to have ended.
    pub dead: Option<usize>,
    /// Called with the index of a watched process that has ended; raises.
    pub on_exit: Option<Py<PyAny>>,
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
}

impl Reader {
    pub fn begin_epoch(&mut self, window: u64) {
        self.window = window;
        self.waiting = None;
        self.surplus = 0;
        self.said = false;
        self.peers.iter_mut().for_each(|peer| peer.held.clear());
    }

    pub fn begin(&mut self, stream: Stream) {
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
            match self.current.unit.kind & !kind::PAYLOAD_IN_BUFFER {
                kind::ITEM => return self.deliver(py, peer).map(Some),
                kind::END => self.collecting.end(peer),
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

    /// Puts the current unit back.
    fn hold(&mut self, peer: usize) {
        let taken = std::mem::take(&mut self.current);
        self.surplus += weight(&taken);
        self.peers[peer].held.push_front(taken);
    }

    /// Makes the next unit of a peer the current one, if there is one.
    #[inline]
    fn take(&mut self, peer: usize) -> PyResult<bool> {
        let Peer { consumer, held } = &mut self.peers[peer];
        if let Some(taken) = held.pop_front() {
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
        match decode(py, &self.current.unit, self.may_lease(peer)) {
            Ok(item) => {
                self.collecting.advance();
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
        let Peer { consumer, held } = &mut self.peers[peer];
        let mut unit = Unit::default();
        if !consumer.take(&mut unit).map_err(errors::take)? {
            return Ok(());
        }
        if !may_lease {
            // The sender's memory is for what is in flight: this may stay for long.
            let buffers = std::mem::take(&mut unit.buffers);
            unit.buffers = py.detach(|| buffers.into_iter().map(Buffer::into_owned).collect());
        }
        if unit.kind & !kind::PAYLOAD_IN_BUFFER == kind::ITEM {
            consumer.item_taken_in();
        }
        let taken = Taken { unit, counted: true };
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
