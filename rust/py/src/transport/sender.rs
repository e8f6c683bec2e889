//! The sending side: the pump that runs a pipe in a worker, or deals its items out from the dispatching process.
//!
//! Runs in the main thread of a child. The loop over the pipe's iterator is here, so that an item costs no Python
//! frame of ours; commands are obeyed between two items, or while an item waits for room. What was begun is kept then, and goes
//! out when the pump is called again: no command costs an item.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use torchdata_core::error::Corrupted;
use torchdata_core::link::Probe;
use torchdata_core::link::arena::Arena;
use torchdata_core::link::producer::{Part, Producer, Push};
use torchdata_core::process::board::BellRef;
use torchdata_core::protocol::{Deal, Dealing, Permit, Reader, Stream};

use super::kinds as kind;
use super::links::{ArenaBuffer, PyBellBoard, PyLink, bell};
use super::waiting::{duration, wait_until};
use crate::codec::{self, Dtype, Encoder, OUT_OF_BAND, OutBuffer, Owner, Source};
use crate::errors;

/// When a wait of so many seconds ends; None: never.
fn deadline(seconds: Option<f64>) -> Option<Instant> {
    // A wait that is too long for the clock has no end either.
    seconds.and_then(|seconds| Instant::now().checked_add(duration(seconds)))
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

fn is_interrupted(control: &Option<Probe>) -> bool {
    control.as_ref().is_some_and(Probe::pending)
}

/// Sends items over one link (a worker) or deals them to several (the dispatching process).
///
/// One thread sends; any thread of the process may allocate.
#[pyclass(frozen, module = "torchdata._native")]
pub struct Sender {
    outlet: Mutex<Outlet>,
    /// By reader: the arena of its link.
    arenas: Vec<Arc<Arena>>,
    /// The reader whose turn it is.
    target: AtomicUsize,
}

/// What the sending thread needs.
struct Outlet {
    producers: Vec<Producer>,
    /// Theirs, in the same order: looked after while a producer waits.
    arenas: Vec<Arc<Arena>>,
    dealing: Dealing,
    own: BellRef,
    /// The control link: what waits there interrupts the pump.
    control: Option<Probe>,
    encoder: Encoder,
    /// A unit that was begun and is not out yet.
    departing: Option<Departing>,
    /// Whether all items of the pass were made, and only ends are to be sent.
    ending: bool,
    /// When sending gives up with a TimeoutError; None: never.
    deadline: Option<Instant>,
}

/// A unit on its way out. It waits for room, and may have to let a command go first.
struct Departing {
    target: usize,
    kind: u16,
    encoder: Encoder,
    /// Buffers of the encoder, and the payload behind them where it is long, that have found their place.
    parts: Vec<Part>,
    /// Bytes of the next one that were sent in fragments.
    streamed: usize,
}

/// Gives shared memory back that has not been used for a while; whether some may go back later.
fn tidy(py: Python<'_>, arenas: &[Arc<Arena>]) -> PyResult<bool> {
    let mut untidy = false;
    for arena in arenas.iter().filter(|arena| arena.is_untidy()) {
        untidy |= py.detach(|| arena.tidy()).map_err(errors::corrupted)?;
    }
    Ok(untidy)
}

/// What became of an attempt to send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// It is out, or its reader wants it no more.
    Done,
    /// A command waits.
    Interrupted,
}

impl Sender {
    fn outlet(&self) -> PyResult<MutexGuard<'_, Outlet>> {
        match self.outlet.try_lock() {
            Ok(outlet) => Ok(outlet),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err("another thread is sending over this link")),
        }
    }
}

#[pymethods]
impl Sender {
    /// Takes the producer's end of each link.
    ///
    /// `peers` are the processes behind the links, `own` is this one: indices of bells. What waits in the `control`
    /// link interrupts the pump and every wait.
    #[new]
    #[pyo3(signature = (links, board, own, peers, control = None))]
    fn new(
        links: Vec<Bound<'_, PyLink>>,
        board: &Bound<'_, PyBellBoard>,
        own: usize,
        peers: Vec<usize>,
        control: Option<&Bound<'_, PyLink>>,
    ) -> PyResult<Self> {
        if links.is_empty() || links.len() != peers.len() {
            return Err(PyValueError::new_err("a sender needs one peer for each of its links"));
        }
        let mut producers = Vec::with_capacity(links.len());
        for (link, &peer) in links.iter().zip(&peers) {
            producers.push(link.get().0.producer(bell(board, peer)?).map_err(errors::open)?);
        }
        let arenas: Vec<_> = producers.iter().map(|producer| Arc::clone(producer.arena())).collect();
        let outlet = Outlet {
            arenas: arenas.clone(),
            dealing: Dealing::new(producers.len()),
            producers,
            own: bell(board, own)?,
            control: control.map(|link| link.get().0.probe()),
            encoder: Encoder::default(),
            departing: None,
            ending: false,
            deadline: None,
        };
        Ok(Self { outlet: Mutex::new(outlet), arenas, target: AtomicUsize::new(0) })
    }

    /// Starts an epoch: units carry its number, and items count from zero. What was begun in an earlier one is given up.
    fn start_epoch(&self, epoch: u32) -> PyResult<()> {
        self.outlet()?.begin(Stream::first(epoch));
        Ok(())
    }

    /// Sends the items of `iterator` as far as the readers want them, until it ends, fails or a command waits.
    ///
    /// Returns False when a command waits: to be called again with the same iterator, once it was obeyed. True once all
    /// that is wanted of this pass was sent. What the iterator raises is raised.
    fn pump(&self, py: Python<'_>, iterator: &Bound<'_, PyAny>) -> PyResult<bool> {
        let mut guard = self.outlet()?;
        let outlet = &mut *guard;
        if outlet.go_on(py)? == Sent::Interrupted {
            return Ok(false);
        }
        while !outlet.ending {
            let deal = outlet.wait_for_turn(py)?;
            let Some(deal) = deal else { return Ok(false) };
            if let Deal::To(target) | Deal::Skip(target) = deal {
                self.target.store(target, Relaxed);
            }
            if deal == Deal::Nobody {
                break;
            }
            // The outlet stays locked while Python code runs: nobody else sends, and allocating needs no lock of it.
            // SAFETY: the GIL is held; a NULL result is the end or an exception.
            let item = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyIter_Next(iterator.as_ptr())) };
            let Some(item) = item else {
                if let Some(error) = PyErr::take(py) {
                    return Err(error);
                }
                break;
            };
            if let Deal::To(target) = deal {
                outlet.depart_item(target, &item)?;
            }
            outlet.dealing.advance();
            drop(item);
            if outlet.go_on(py)? == Sent::Interrupted {
                return Ok(false);
            }
        }
        outlet.ending = true;
        Ok(outlet.send_ends(py)? == Sent::Done)
    }

    /// Waits, after a pass, until the readers want another one, and begins it. False when a command waits.
    fn next_pass(&self, py: Python<'_>) -> PyResult<bool> {
        let mut outlet = self.outlet()?;
        let Outlet { producers, dealing, own, control, .. } = &mut *outlet;
        let asked = || {
            // A damaged word counts as asking: the first item reports it.
            dealing.is_asked_again(|reader| producers[reader].reader().unwrap_or(Reader::Ahead))
        };
        wait_until(py, own, || is_interrupted(control) || asked(), || (), |_| Ok(()))?;
        if is_interrupted(control) {
            return Ok(false);
        }
        let next = producers[0].stream().next_pass();
        outlet.begin(next);
        Ok(true)
    }

    /// Sends what describes the failure of the pipe to all readers: to one that got an end instead, a part of its share would
    /// look like the whole.
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
            outlet.depart(target, kind::ERROR, description)?;
            outlet.dealing.end(target);
        }
    }

    /// Sends a message of the control protocol over the first link; gives up after `seconds`.
    ///
    /// `order` is the epoch, or what is beyond all epochs, that the message orders, if any: it ends what the peer runs.
    /// `tick` is called several times a second while waiting; what it raises ends the wait, and the message was not sent.
    ///
    /// Raises TimeoutError where the peer does not read.
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
        outlet.depart(0, kind::MESSAGE, message)?;
        let sent = outlet.go_on_with(py, tick);
        outlet.deadline = None;
        sent.map(drop)
    }

    /// Waits until the peer has acknowledged `count` messages; False where `seconds` were not enough.
    ///
    /// `tick` is called several times a second while waiting; what it raises ends the wait.
    fn wait_acknowledged(&self, py: Python<'_>, count: u64, seconds: f64, tick: &Bound<'_, PyAny>) -> PyResult<bool> {
        let deadline = deadline(Some(seconds));
        let outlet = self.outlet()?;
        let producer = &outlet.producers[0];
        let done = || producer.acknowledged().map_or(true, |done| done >= count);
        wait_until(py, &outlet.own, || done() || is_over(deadline), || (), |_| tick.call0().map(drop))?;
        Ok(producer.acknowledged().map_err(errors::corrupted)? >= count)
    }

    /// An array of a plain dtype over a block of the arena that the next item goes out of. Any thread may call it.
    ///
    /// Returns None where the arena has no room or the dtype does not cross without pickling.
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
        let arena = &self.arenas[self.target.load(Relaxed)];
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

    /// (bytes in use, peak, blocks) of each link's arena.
    fn arena_usage(&self) -> Vec<(u64, u64, usize)> {
        let usages = self.arenas.iter().map(|arena| arena.usage());
        usages.map(|usage| (usage.in_use, usage.peak, usage.blocks)).collect()
    }
}

impl Outlet {
    fn begin(&mut self, stream: Stream) {
        self.departing = None;
        self.ending = false;
        self.dealing.begin();
        self.producers.iter_mut().for_each(|producer| producer.begin(stream));
    }

    /// What the next item is to become, once that is clear; None when a command waits.
    #[inline]
    fn wait_for_turn(&mut self, py: Python<'_>) -> PyResult<Option<Deal>> {
        loop {
            if is_interrupted(&self.control) {
                self.flush();
                return Ok(None);
            }
            let Self { dealing, producers, .. } = self;
            let mut damage = None;
            let deal = dealing.next(|reader| match producers[reader].permit() {
                Ok(permit) => permit,
                Err(error) => {
                    damage = Some(error);
                    Permit::Wait
                }
            });
            if let Some(error) = damage {
                return Err(errors::corrupted(error));
            }
            let Deal::WaitFor(target) = deal else { return Ok(Some(deal)) };
            self.flush();
            let Self { producers, arenas, control, .. } = self;
            let producer = &mut producers[target];
            let ready = || producer.permit() != Ok(Permit::Wait) || is_interrupted(control);
            wait_until(py, &self.own, ready, || (), |py| tidy(py, arenas).map(drop))?;
        }
    }

    fn flush(&mut self) {
        self.producers.iter_mut().for_each(Producer::flush);
    }

    fn send_ends(&mut self, py: Python<'_>) -> PyResult<Sent> {
        loop {
            if self.go_on(py)? == Sent::Interrupted {
                return Ok(Sent::Interrupted);
            }
            let Some(target) = self.dealing.turn() else { return Ok(Sent::Done) };
            let encoder = std::mem::take(&mut self.encoder);
            self.departing = Some(Departing { target, kind: kind::END, encoder, parts: Vec::new(), streamed: 0 });
            self.dealing.end(target);
        }
    }

    /// Encodes an item, and sends it at once where it is small and there is room: the usual item is spared what follows.
    #[inline]
    fn depart_item(&mut self, target: usize, item: &Bound<'_, PyAny>) -> PyResult<()> {
        let Self { encoder, producers, .. } = self;
        let producer = &mut producers[target];
        if let Err(error) = encoder.encode(item, producer.arena()) {
            encoder.clear();
            return Err(error);
        }
        if encoder.buffers.is_empty()
            && encoder.payload.len() <= producer.max_inline()
            && producer.push_item(kind::ITEM, &[], &encoder.payload).map_err(errors::corrupted)? == Push::Done
        {
            encoder.clear();
            return Ok(());
        }
        producer.give_up(); // fragments of what an exception kept from being sent
        let encoder = std::mem::take(encoder);
        self.departing = Some(Departing { target, kind: kind::ITEM, encoder, parts: Vec::new(), streamed: 0 });
        Ok(())
    }

    /// Encodes an object, to be sent by `go_on`.
    fn depart(&mut self, target: usize, kind: u16, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut encoder = std::mem::take(&mut self.encoder);
        encoder.clear();
        encoder.encode(object, self.producers[target].arena())?;
        self.producers[target].give_up(); // fragments of a message that an exception kept from being sent
        self.departing = Some(Departing { target, kind, encoder, parts: Vec::new(), streamed: 0 });
        Ok(())
    }

    #[inline]
    fn go_on(&mut self, py: Python<'_>) -> PyResult<Sent> {
        if self.departing.is_none() { Ok(Sent::Done) } else { self.go_on_with(py, None) }
    }

    /// Sends what was begun. An exception (of a signal handler, of `tick`, for want of time) gives it up.
    fn go_on_with(&mut self, py: Python<'_>, tick: Option<&Bound<'_, PyAny>>) -> PyResult<Sent> {
        let Some(mut departing) = self.departing.take() else { return Ok(Sent::Done) };
        let sent = self.send(py, &mut departing, tick)?;
        if sent == Sent::Interrupted {
            self.departing = Some(departing);
        } else {
            departing.encoder.clear();
            self.encoder = departing.encoder;
        }
        Ok(sent)
    }

    fn send(&mut self, py: Python<'_>, departing: &mut Departing, tick: Option<&Bound<'_, PyAny>>) -> PyResult<Sent> {
        let Departing { target, kind, encoder, parts, streamed } = departing;
        let inline = encoder.payload.len() <= self.producers[*target].max_inline();
        while parts.len() < encoder.buffers.len() + usize::from(!inline) {
            let placed = match encoder.buffers.get_mut(parts.len()) {
                Some(OutBuffer::Block(block)) => Placed::At(Part::Block(Arc::clone(block))),
                Some(OutBuffer::Memory(source)) => self.place(py, *target, source, streamed, tick)?,
                None => {
                    let payload = &encoder.payload;
                    let mut payload = Source::dense(payload.as_ptr(), payload.len(), Owner::Caller);
                    self.place(py, *target, &mut payload, streamed, tick)?
                }
            };
            match placed {
                Placed::At(part) => parts.push(part),
                Placed::Nowhere(sent) => return Ok(sent),
            }
            *streamed = 0;
        }
        let (kind, payload) = match inline {
            true => (*kind, &encoder.payload[..]),
            false => (*kind | kind::PAYLOAD_IN_BUFFER, &[][..]),
        };
        self.push_with(py, *target, parts.len(), payload.len(), tick, |producer| match kind & 0xff {
            kind::ITEM => producer.push_item(kind, parts, payload),
            _ => producer.push(kind, parts, payload),
        })
    }

    /// Brings a buffer into the arena, or where it will not fit, sends it ahead in fragments, from byte `streamed` on.
    fn place(
        &mut self,
        py: Python<'_>,
        target: usize,
        source: &mut Source,
        streamed: &mut usize,
        tick: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Placed> {
        let len = source.len();
        if *streamed == 0
            && let Some(placed) = self.place_in_arena(py, target, source, tick)?
        {
            return Ok(placed);
        }
        let from = source.make_dense(py)?;
        let longest = self.producers[target].fragment_len();
        while *streamed < len {
            let piece = longest.min(len - *streamed);
            // SAFETY: `from` is valid for `len` bytes, kept alive by the source's owner.
            let bytes = unsafe { std::slice::from_raw_parts(from.add(*streamed), piece) };
            let before = *streamed;
            let sent = self.push_with(py, target, 0, piece, tick, |producer| {
                let pushed = producer.push_fragment(bytes)?;
                if pushed == Push::Done {
                    *streamed += piece;
                }
                Ok(pushed)
            })?;
            if *streamed == before {
                return Ok(Placed::Nowhere(sent));
            }
        }
        Ok(Placed::At(Part::Streamed(len as u64)))
    }

    /// Copies a buffer into a block, waiting for one where some are on their way back; None where there will be none.
    fn place_in_arena(
        &mut self,
        py: Python<'_>,
        target: usize,
        source: &Source,
        tick: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Placed>> {
        loop {
            let producer = &mut self.producers[target];
            if let Some(block) = producer.allocate(source.len()).map_err(errors::corrupted)? {
                // SAFETY: the block is ours and has room for so many bytes.
                unsafe { source.copy(py, block.as_mut_ptr()) };
                return Ok(Some(Placed::At(Part::Block(Arc::new(block)))));
            }
            if !producer.blocks_in_flight().map_err(errors::corrupted)? {
                return Ok(None);
            }
            // An error ends the wait; the next call into the producer reports it.
            let sent = self.wait_for_room(py, target, tick, |producer| producer.worth_allocating().unwrap_or(true))?;
            if let Some(sent) = sent {
                return Ok(Some(Placed::Nowhere(sent)));
            }
        }
    }

    /// Pushes once there is room for a unit of that size. Done, too, where the reader wants it no more.
    fn push_with(
        &mut self,
        py: Python<'_>,
        target: usize,
        blocks: usize,
        payload: usize,
        tick: Option<&Bound<'_, PyAny>>,
        mut push: impl FnMut(&mut Producer) -> Result<Push, Corrupted>,
    ) -> PyResult<Sent> {
        loop {
            if push(&mut self.producers[target]).map_err(errors::corrupted)? == Push::Done {
                return Ok(Sent::Done);
            }
            let room = |producer: &mut Producer| producer.writable(blocks, payload).unwrap_or(true);
            if let Some(sent) = self.wait_for_room(py, target, tick, room)? {
                return Ok(sent);
            }
        }
    }

    /// Waits for room; tells where something else ends the wait.
    fn wait_for_room(
        &mut self,
        py: Python<'_>,
        target: usize,
        tick: Option<&Bound<'_, PyAny>>,
        mut room: impl FnMut(&mut Producer) -> bool + Send,
    ) -> PyResult<Option<Sent>> {
        let Self { producers, own, control, deadline, .. } = self;
        let producer = &mut producers[target];
        producer.flush();
        let unwanted =
            |producer: &mut Producer| matches!(producer.reader(), Ok(Reader::Left | Reader::Ahead | Reader::Done));
        let ready = || room(producer) || is_interrupted(control) || unwanted(producer);
        wait_until(
            py,
            own,
            ready,
            || (),
            |_| {
                if is_over(*deadline) {
                    return Err(PyTimeoutError::new_err("the peer does not read"));
                }
                tick.map_or(Ok(()), |tick| tick.call0().map(drop))
            },
        )?;
        if is_interrupted(control) {
            return Ok(Some(Sent::Interrupted));
        }
        // What was begun for a reader that wants no more goes nowhere.
        let gone = unwanted(producer) && !room(producer);
        Ok(gone.then(|| {
            producer.give_up();
            Sent::Done
        }))
    }
}

/// Where a buffer went.
enum Placed {
    /// There.
    At(Part),
    /// Nowhere: a command waits, or the reader wants it no more.
    Nowhere(Sent),
}
