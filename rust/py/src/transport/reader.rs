//! Reads items from several links. While the reader waits, it handles timeouts, exited processes and signals.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use torchdata_core::link::consumer::{Buffer, Message};
use torchdata_core::process::board::BellRef;
use torchdata_core::protocol::{Collecting, Next, Stream};

use super::clock::Clock;
use super::interrupt::Interrupt;
use super::kinds as kind;
use super::meters::Meters;
use super::peers::Peers;
use super::progress::StreamProgress;
use super::snapshots::{self, Relayed};
use super::waiting::{wait_among, wait_until};
use super::watched::ExitWatch;
use crate::codec;
use crate::errors;

pub struct Signs {
    /// The current epoch. A thread that reads an earlier epoch stops when it finds a later epoch here.
    pub epoch: AtomicU64,
    pub stopped: AtomicBool,
    pub paused: AtomicBool,
    pub pass: AtomicU64,
    pub own: BellRef,
}

impl Signs {
    pub fn new(own: BellRef) -> Self {
        Self {
            epoch: AtomicU64::new(0),
            stopped: AtomicBool::new(true),
            paused: AtomicBool::new(false),
            pass: AtomicU64::new(0),
            own,
        }
    }

    #[inline]
    pub fn is_over(&self, epoch: u32) -> bool {
        self.stopped.load(Relaxed) || self.epoch.load(Relaxed) != u64::from(epoch)
    }
}

pub struct Reader {
    pub peers: Peers,
    pub collecting: Collecting,
    pub progress: StreamProgress,
    pub clock: Clock,
    pub meters: Meters,
    pub watch: ExitWatch,
    /// In a worker process, the link for commands, because a command must end the waits of the reader.
    pub interrupt: Option<Interrupt>,
    pub stream: Stream,
    /// A stream that the reader has begun only to receive the first snapshot, before any item of the stream is
    /// requested.
    looked_into: Option<Stream>,
    own: BellRef,
    /// A callback with the arguments (peer, description), which must raise the exception that a worker has reported.
    on_error: Py<PyAny>,
    pub on_note: Option<Py<PyAny>>,
}

impl Reader {
    pub fn new(peers: Peers, in_order: bool, clock: Clock, own: BellRef, on_error: Py<PyAny>) -> Self {
        Self {
            collecting: Collecting::new(peers.len(), in_order),
            progress: StreamProgress::new(peers.len()),
            peers,
            clock,
            meters: Meters::default(),
            watch: ExitWatch::default(),
            interrupt: None,
            stream: Stream::default(),
            looked_into: None,
            own,
            on_error,
            on_note: None,
        }
    }

    pub fn begin_epoch(&mut self, window: u64) {
        self.clock.note_item();
        self.looked_into = None;
        self.peers.begin_epoch(window);
    }

    pub fn begin(&mut self, py: Python<'_>, signs: &Signs, stream: Stream) {
        let looked_into = self.looked_into.take() == Some(stream);
        self.stream = stream;
        signs.pass.store(u64::from(stream.pass()), Relaxed);
        self.progress.begin(py);
        self.meters.begin();
        self.collecting.turn.start();
        self.peers.begin(stream, looked_into);
    }

    #[inline]
    pub fn apply_pause(&mut self, signs: &Signs) {
        self.peers.set_paused(signs.paused.load(Relaxed));
    }

    pub fn next<'py>(&mut self, py: Python<'py>, signs: &Signs, epoch: u32) -> PyResult<Option<Bound<'py, PyAny>>> {
        while !signs.is_over(epoch) {
            match self.peers.next_to_deliver(&mut self.collecting) {
                Next::Deliver(peer) => {
                    if self.peers.take(peer)? {
                        self.clock.stop();
                        self.meters.first = false;
                        if self.peers.current.message.kind & kind::WHAT == kind::ITEM {
                            self.clock.note_item();
                            return self.deliver(py, peer).map(Some);
                        }
                        if !self.handle(py, peer)? {
                            return Ok(None);
                        }
                    } // other messages are fragments, or remain from an earlier epoch
                }
                Next::Over => return Ok(None),
                Next::Fail if self.watch.replacing.is_some() => self.replace_processes(py, Vec::new())?,
                Next::Fail => return Err(self.watch.error(py)),
                Next::TakeIn(_) | Next::Wait => self.wait(py, signs, epoch)?,
            }
        }
        if signs.epoch.load(Relaxed) == u64::from(epoch) {
            return Ok(None); // the loader was shut down
        }
        Err(PyRuntimeError::new_err(
            "the epoch was abandoned while this thread waited for an item, because the loader began another epoch",
        ))
    }

    /// Handles a message that is not an item. Returns false if the message is an error.
    #[cold]
    fn handle(&mut self, py: Python<'_>, peer: usize) -> PyResult<bool> {
        match self.peers.current.message.kind & kind::WHAT {
            kind::END => {
                self.collecting.turn.end(peer);
                self.progress.books.with(py, |books| books.end(peer));
            }
            kind::ERROR => {
                let description = decode(py, &self.peers.current.message, self.peers.may_lease(peer));
                // The message is put back, so that the next call of this method also finds the error, even if a signal
                // handler interrupts the callback.
                self.peers.put_back(peer);
                self.on_error.call1(py, (peer, description?))?;
                return Ok(false); // reached only if `on_error` does not raise an exception
            }
            kind::NOTE => {
                let note = decode(py, &self.peers.current.message, self.peers.may_lease(peer))?;
                if let Some(on_note) = &self.on_note {
                    on_note.call1(py, (peer, note))?;
                }
            }
            message_kind if snapshots::is_snapshot(message_kind) => self.keep(py, peer)?,
            _ => {} // an answer for which no code waits any more
        }
        Ok(true)
    }

    /// Decodes and returns the item in the current message. If decoding fails, for example because of Ctrl-C, the next
    /// call decodes the same message.
    #[inline]
    fn deliver<'py>(&mut self, py: Python<'py>, peer: usize) -> PyResult<Bound<'py, PyAny>> {
        let may_lease = self.peers.may_lease(peer);
        let message = &self.peers.current.message;
        let item = match decode(py, message, may_lease) {
            Ok(item) => item,
            Err(error) => {
                self.peers.put_back(peer);
                return Err(error);
            }
        };
        self.collecting.turn.advance();
        self.progress.deliver(py, peer, message.digest);
        self.peers.delivered(peer, may_lease);
        Ok(item)
    }

    fn keep(&mut self, py: Python<'_>, peer: usize) -> PyResult<()> {
        self.keep_message(py, peer, &self.peers.current.message)?;
        self.peers.current.message.buffers.clear();
        Ok(())
    }

    pub fn keep_message(&self, py: Python<'_>, peer: usize, message: &Message) -> PyResult<()> {
        if self.interrupt.is_none() {
            return self.progress.keep(py, peer, message);
        }
        self.progress.relay.put(Relayed::of(message)?);
        Ok(())
    }

    pub fn keep_taken_in(&mut self, py: Python<'_>, peer: usize) -> PyResult<()> {
        self.peers.snapshots_taken_in(peer).iter().try_for_each(|taken| self.keep_message(py, peer, &taken.message))
    }

    fn take_snapshot(&mut self, py: Python<'_>, peer: usize) -> PyResult<bool> {
        let taken = self.peers.take(peer)?;
        if taken && snapshots::is_snapshot(self.peers.current.message.kind) {
            self.keep(py, peer)?;
        } else if taken {
            self.peers.put_back(peer);
        }
        Ok(taken)
    }

    /// Waits in a worker process for the first snapshot of the dispatching process, without requesting an item.
    pub fn await_relayed(&mut self, py: Python<'_>, stream: Stream) -> PyResult<()> {
        self.looked_into = Some(stream);
        self.peers.links[0].begin(stream, 0);
        while !self.peers.has_taken_in(0) && !self.progress.relay.waits() {
            if self.take_snapshot(py, 0)? {
                continue;
            }
            let Self { peers, own, interrupt, meters, .. } = self;
            let is_ordered = || interrupt.as_ref().is_some_and(|interrupt| interrupt.control.pending());
            if is_ordered() {
                break;
            }
            let ready = || peers.has_arrived(0) || is_ordered();
            wait_until(py, own, meters.wait(None), ready, |_| Ok(()))?;
        }
        Ok(())
    }

    /// Waits for the first message of each shard in this epoch, and stores snapshots. If `dispatched` is true, waits for the
    /// snapshot of the dispatching process as well.
    pub fn await_snapshots(&mut self, py: Python<'_>, signs: &Signs, dispatched: bool) -> PyResult<()> {
        let (began, epoch) = (Instant::now(), signs.epoch.load(Relaxed) as u32);
        self.clock.rearm();
        self.peers.await_all();
        for peer in 0..self.peers.len() {
            self.keep_taken_in(py, peer)?; // stores a snapshot that arrived while another peer was awaited
            while !self.peers.has_taken_in(peer) && !self.progress.has_snapshot(py, peer, dispatched) {
                if !self.take_snapshot(py, peer)? && !self.await_first(py, signs, epoch, peer, began)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Waits for the first message of `peer`. Returns false if the epoch ends, the timeout expires or a process exits.
    fn await_first(
        &mut self,
        py: Python<'_>,
        signs: &Signs,
        epoch: u32,
        peer: usize,
        began: Instant,
    ) -> PyResult<bool> {
        let Self { peers, own, watch, clock, .. } = self;
        let limit = clock.limit;
        let is_left = || signs.is_over(epoch) || limit.is_some_and(|limit| began.elapsed() >= limit);
        if is_left() || watch.any_exit() {
            return Ok(false);
        }
        let any_exit = || watch.any_exit();
        let ready = || peers.has_arrived(peer) || is_left();
        let tick = |py: Python<'_>| clock.report_stall(py, Some(peer), began.elapsed());
        wait_among(py, own, None, Some(&any_exit), ready, || (), tick)
    }

    fn wait(&mut self, py: Python<'_>, signs: &Signs, epoch: u32) -> PyResult<()> {
        let turn = self.collecting.turn.next();
        let awoken = self.sleep(py, signs, epoch, turn);
        let next = match awoken {
            Ok(Some(next)) => next,
            Ok(None) => {
                // Complete items of the exited process are delivered before the exit is handled, unless an earlier item
                // is missing.
                self.watch.note_exit();
                self.collecting.note_exit();
                return Ok(());
            }
            Err(error) => {
                if error.is_instance_of::<PyTimeoutError>(py) {
                    self.clock.stop(); // a caller that tries again waits for the full timeout
                }
                return Err(error);
            }
        };
        if let Some(interrupt) = self.interrupt.as_ref().filter(|interrupt| interrupt.is_superseded(epoch)) {
            return Err(interrupt.error(py));
        }
        if let Next::TakeIn(peer) = next {
            self.peers.take_in(py, peer, turn)?;
        }
        self.apply_pause(signs);
        Ok(())
    }

    /// Returns the reader's next step, or None if a process has exited.
    fn sleep(&mut self, py: Python<'_>, signs: &Signs, epoch: u32, turn: Option<usize>) -> PyResult<Option<Next>> {
        let Self { peers, collecting, clock, meters, watch, interrupt, own, .. } = self;
        clock.start();
        let paused = peers.paused;
        match turn {
            Some(peer) if collecting.turn.in_order => peers.await_one(peer),
            _ => peers.await_all(),
        }
        if let Some(peer) = turn {
            peers.consumer(peer).wait();
        }
        let link = turn.map(|peer| peers.link_of(peer));
        let interrupt = interrupt.as_ref();
        let mut next = Next::Wait;
        let ready = || {
            next = peers.next(collecting);
            next != Next::Wait
                || signs.is_over(epoch)
                || signs.paused.load(Relaxed) != paused
                || interrupt.is_some_and(|interrupt| interrupt.is_superseded(epoch))
        };
        let any_exit = || watch.any_exit();
        let exit: Option<&(dyn Fn() -> bool + Sync)> = if watch.processes.is_empty() { None } else { Some(&any_exit) };
        let starve = || interrupt.into_iter().for_each(|interrupt| interrupt.starve(epoch));
        let awoken = wait_among(py, own, meters.wait(link), exit, ready, starve, |py| {
            starve(); // the control word may have been overwritten
            clock.look(py, turn, paused)
        });
        interrupt.into_iter().for_each(|interrupt| interrupt.output.0.stop_starving());
        if !awoken? {
            return Ok(None);
        }
        // Signals are handled before the item is taken, because an exception after taking the item would lose the item.
        py.check_signals().map(|()| Some(next))
    }

    fn await_message(
        &mut self,
        py: Python<'_>,
        peer: usize,
        (started, limit): (Instant, Option<Duration>),
        message: &mut Message,
    ) -> PyResult<bool> {
        let is_over = || limit.is_some_and(|limit| started.elapsed() >= limit);
        let Self { peers, own, meters, .. } = self;
        let consumer = peers.consumer(peer);
        loop {
            if consumer.take(message).map_err(errors::take)? {
                return Ok(true);
            }
            if is_over() {
                return Ok(false);
            }
            let ready = || consumer.readable().unwrap_or(true) || is_over();
            wait_until(py, own, meters.idle.as_ref(), ready, |_| Ok(()))?;
        }
    }

    pub fn receive<'py>(
        &mut self,
        py: Python<'py>,
        peer: usize,
        limit: Option<Duration>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (mut message, until) = (Message::default(), (Instant::now(), limit));
        while self.await_message(py, peer, until, &mut message)? {
            if message.kind & kind::WHAT == kind::MESSAGE {
                return decode(py, &message, true).map(Some);
            }
        }
        Ok(None)
    }

    pub fn receive_results<'py>(
        &mut self,
        py: Python<'py>,
        peer: usize,
        last: u64,
        limit: Option<Duration>,
    ) -> PyResult<Row<'py>> {
        let mut message = Message::default();
        let (mut results, mut seconds) = (Vec::new(), 0.0);
        let mut there = self.await_message(py, peer, (Instant::now(), limit), &mut message)?;
        while there {
            let last = last + results.len() as u64;
            let arrived = match message.kind & kind::WHAT {
                kind::RESULT => decode_result(py, &message, last),
                kind::MESSAGE => decode(py, &message, true).map(Arrived::Message),
                _ => Ok(Arrived::Late),
            };
            match arrived {
                Ok(Arrived::Late) => {}
                Ok(Arrived::Result(result, spent)) => {
                    results.push(result);
                    seconds = spent;
                }
                Ok(Arrived::Message(message)) => return Ok((results, seconds, Some(message))),
                Err(error) => return Ok((results, seconds, Some(error.into_value(py).into_bound(py).into_any()))),
            }
            there = self.peers.consumer(peer).take(&mut message).map_err(errors::take)?;
        }
        Ok((results, seconds, None))
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.watch.traverse(visit)?;
        self.clock.traverse(visit)?;
        visit.call(&self.peers.surplus.on_surplus)?;
        visit.call(&self.on_error)?;
        visit.call(&self.on_note)?;
        visit.call(self.interrupt.as_ref().map(|interrupt| &interrupt.exception))
    }

    /// Removes and returns the callbacks. The caller must release the reader before it drops the callbacks, because
    /// dropping may run arbitrary code.
    pub fn clear(&mut self) -> impl Sized + use<> {
        let (on_exit, replacing) = self.watch.clear();
        (
            on_exit,
            replacing,
            self.peers.surplus.on_surplus.take(),
            self.clock.clear(),
            self.interrupt.take(),
            self.on_note.take(),
        )
    }
}

/// The results of function calls, as a tuple of the results, their total time in seconds, and the message after the
/// results.
pub type Row<'py> = (Vec<Bound<'py, PyAny>>, f64, Option<Bound<'py, PyAny>>);

enum Arrived<'py> {
    /// The result of a function call, and how many seconds the process has worked on the batch of calls.
    Result(Bound<'py, PyAny>, f64),
    Message(Bound<'py, PyAny>),
    Late,
}

fn decode_result<'py>(py: Python<'py>, message: &Message, last: u64) -> PyResult<Arrived<'py>> {
    with_payload(py, message, |payload, buffers| {
        let (object, number, spent) = kind::split_result(payload).ok_or_else(codec::malformed)?;
        if number <= last {
            return Ok(Arrived::Late);
        }
        codec::decode(py, object, buffers, true).map(|result| Arrived::Result(result, spent))
    })
}

#[inline]
fn decode<'py>(py: Python<'py>, message: &Message, may_lease: bool) -> PyResult<Bound<'py, PyAny>> {
    with_payload(py, message, |payload, buffers| codec::decode(py, payload, buffers, may_lease))
}

/// Calls `look` with the payload and buffers of a message. A payload in shared memory is copied before the call of
/// `look`, so that the sender cannot change the payload.
#[inline]
fn with_payload<R>(
    py: Python<'_>,
    message: &Message,
    look: impl FnOnce(&[u8], &[Buffer]) -> PyResult<R>,
) -> PyResult<R> {
    match message.buffers.split_last() {
        Some((long, buffers)) if message.kind & kind::PAYLOAD_IN_BUFFER != 0 => match long {
            Buffer::Owned(payload) => look(payload, buffers),
            Buffer::Leased(lease) => {
                let payload = py.detach(|| lease.private_copy()).map_err(errors::memory)?;
                look(&payload, buffers)
            }
        },
        _ => look(&message.payload, &message.buffers),
    }
}
