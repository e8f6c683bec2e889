//! The sending side: the pump that runs a pipe in a worker, or deals its items out from the dispatching process.
//!
//! Runs in the main thread of a child. The loop over the pipe's iterator is here, so that an item costs no Python
//! frame of ours; commands are obeyed between two items.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyIndexError, PyTimeoutError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use torchdata_core::arena::Arena;
use torchdata_core::bell::BellRef;
use torchdata_core::error::Corrupted;
use torchdata_core::link::Probe;
use torchdata_core::producer::{Part, Producer, Push};
use torchdata_core::round_robin::RoundRobin;

use crate::codec::{self, Encoder, OUT_OF_BAND, OutBuffer};
use crate::errors;
use crate::shared::{ArenaBuffer, PyBellBoard, PyLink};
use crate::waiting::wait_until;

/// What a unit is; the same numbers on both sides.
pub mod kind {
    /// An item of the pipe.
    pub const ITEM: u16 = 0;
    /// The pipe has ended for this epoch.
    pub const END: u16 = 1;
    /// The pipe failed; carries what describes the exception.
    pub const ERROR: u16 = 2;
    /// A message of the control protocol: a command or the answer to one.
    pub const MESSAGE: u16 = 3;
    /// Set where the inline payload was too long and travels as the last buffer.
    pub const PAYLOAD_IN_BUFFER: u16 = 0x100;
}

/// Bytes from which a copy is made without the GIL.
const LONG_COPY: usize = 16 * OUT_OF_BAND;

/// Finds the bell of process `index`.
pub fn bell(board: &Bound<'_, PyBellBoard>, index: usize) -> PyResult<BellRef> {
    let bells = &board.get().0;
    bells.bell(index).ok_or_else(|| PyIndexError::new_err(format!("there are {} bells, not {index}", bells.len())))
}

/// Sends items over one link (a worker) or deals them to several (the dispatching process).
#[pyclass(module = "torchdata._native")]
pub struct Sender {
    producers: Vec<Producer>,
    /// Theirs, in the same order: looked after while a producer waits.
    arenas: Vec<Arc<Arena>>,
    turn: RoundRobin,
    own: BellRef,
    /// The control link: what waits there interrupts the pump.
    control: Option<Probe>,
    encoder: Encoder,
    /// When sending gives up with a TimeoutError; None: never.
    deadline: Option<Instant>,
}

fn deadline(seconds: Option<f64>) -> Option<Instant> {
    let seconds = seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
    seconds.and_then(|seconds| Instant::now().checked_add(seconds))
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
#[derive(PartialEq, Eq)]
enum Sent {
    Done,
    /// A command waits; the unit was given up.
    Interrupted,
}

fn interrupted(control: &Option<Probe>) -> bool {
    control.as_ref().is_some_and(Probe::pending)
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
        Ok(Self {
            turn: RoundRobin::new(producers.len(), true),
            arenas: producers.iter().map(|producer| Arc::clone(producer.arena())).collect(),
            producers,
            own: bell(board, own)?,
            control: control.map(|link| link.get().0.probe()),
            encoder: Encoder::default(),
            deadline: None,
        })
    }

    /// Starts an epoch: units carry its number, and items count from zero.
    fn start_epoch(&mut self, epoch: u64) {
        self.turn.start(epoch);
        for producer in &mut self.producers {
            producer.start_epoch(epoch);
        }
    }

    /// Sends the items of `iterator` as far as the consumers allow, until it ends, fails or a command waits.
    ///
    /// Returns True once the end was sent, False when a command waits. What the iterator raises is raised.
    fn pump(slf: &Bound<'_, Self>, iterator: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = slf.py();
        loop {
            if !slf.borrow_mut().wait_for_turn(py)? {
                return Ok(false);
            }
            // Not borrowed while Python code runs: it may call `allocate`.
            // SAFETY: the GIL is held; a NULL result is the end or an exception.
            let item = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyIter_Next(iterator.as_ptr())) };
            let Some(item) = item else {
                if let Some(error) = PyErr::take(py) {
                    return Err(error);
                }
                return Ok(slf.borrow_mut().send_end(py)? == Sent::Done);
            };
            if slf.borrow_mut().send_item(py, &item)? == Sent::Interrupted {
                return Ok(false);
            }
        }
    }

    /// Sends what describes the failure of the pipe to whose turn it is, and the end to all others.
    ///
    /// Returns False when a command waits and the message was given up.
    fn send_error(&mut self, py: Python<'_>, description: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Some(target) = self.turn.next() else { return Ok(true) };
        if self.send_object(py, target, kind::ERROR, description)? == Sent::Interrupted {
            return Ok(false);
        }
        self.turn.end(target);
        Ok(self.send_end(py)? == Sent::Done)
    }

    /// Sends a message of the control protocol over the first link; gives up after `seconds`.
    ///
    /// Raises TimeoutError where the peer does not read.
    #[pyo3(signature = (message, seconds = None))]
    fn send_message(&mut self, py: Python<'_>, message: &Bound<'_, PyAny>, seconds: Option<f64>) -> PyResult<()> {
        self.deadline = deadline(seconds);
        let sent = self.send_object(py, 0, kind::MESSAGE, message);
        self.deadline = None;
        sent.map(drop)
    }

    /// Waits until the peer has acknowledged `count` messages; False where `seconds` were not enough.
    ///
    /// `tick` is called several times a second while waiting; what it raises ends the wait.
    fn wait_acknowledged(&self, py: Python<'_>, count: u64, seconds: f64, tick: &Bound<'_, PyAny>) -> PyResult<bool> {
        let deadline = deadline(Some(seconds));
        let producer = &self.producers[0];
        let expired = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let ready = || producer.granted_now() >= count || expired();
        wait_until(py, &self.own, ready, |_| tick.call0().map(drop))?;
        Ok(producer.granted_now() >= count)
    }

    /// An array of a plain dtype over a block of the arena that the next item goes out of.
    ///
    /// Returns None where the arena has no room or the dtype does not cross without pickling.
    fn allocate<'py>(
        &mut self,
        py: Python<'py>,
        shape: Vec<usize>,
        dtype_number: i32,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(item_size) = codec::plain_item_size(dtype_number) else { return Ok(None) };
        let Some(len) = shape.iter().try_fold(item_size, |len, &dim| len.checked_mul(dim)) else { return Ok(None) };
        if len < OUT_OF_BAND {
            return Ok(None);
        }
        let Some(target) = self.turn.next() else { return Ok(None) };
        let Some(block) = self.producers[target].allocate(len).map_err(errors::corrupted)? else { return Ok(None) };
        let buffer = Bound::new(py, ArenaBuffer { block: Arc::new(block), sent: AtomicBool::new(false) })?;
        let shape = shape.into_iter().map(|dim| dim as isize).collect();
        codec::empty_over(buffer, dtype_number as u8, shape).map(Some)
    }

    /// Takes blocks back, and gives memory that has not been used for some seconds to the system.
    ///
    /// Returns whether there may be something to do later. Sending does this by itself; it is for a sender at rest.
    fn tidy(&self, py: Python<'_>) -> PyResult<bool> {
        tidy(py, &self.arenas)
    }

    /// (bytes in use, peak, blocks) of each link's arena.
    fn arena_usage(&self) -> Vec<(u64, u64, usize)> {
        self.producers
            .iter()
            .map(|producer| producer.arena().usage())
            .map(|usage| (usage.in_use, usage.peak, usage.blocks))
            .collect()
    }
}

impl Sender {
    /// Waits until the consumer whose turn it is allows an item. False when a command waits.
    #[inline]
    fn wait_for_turn(&mut self, py: Python<'_>) -> PyResult<bool> {
        loop {
            if interrupted(&self.control) {
                self.flush();
                return Ok(false);
            }
            let Some(target) = self.turn.next() else { return Ok(false) };
            if self.producers[target].may_produce() {
                return Ok(true);
            }
            self.flush();
            let (producer, control) = (&mut self.producers[target], &self.control);
            let tick = |py: Python<'_>| tidy(py, &self.arenas).map(drop);
            wait_until(py, &self.own, || producer.may_produce() || interrupted(control), tick)?;
        }
    }

    fn flush(&mut self) {
        self.producers.iter_mut().for_each(Producer::flush);
    }

    fn send_item(&mut self, py: Python<'_>, item: &Bound<'_, PyAny>) -> PyResult<Sent> {
        let Some(target) = self.turn.next() else { return Ok(Sent::Interrupted) };
        let sent = self.send_object(py, target, kind::ITEM, item)?;
        if sent == Sent::Done {
            self.turn.advance();
        }
        Ok(sent)
    }

    fn send_end(&mut self, py: Python<'_>) -> PyResult<Sent> {
        while let Some(target) = self.turn.next() {
            if self.push(py, target, kind::END, &[], &[])? == Sent::Interrupted {
                return Ok(Sent::Interrupted);
            }
            self.turn.end(target);
        }
        Ok(Sent::Done)
    }

    /// Encodes and sends one object.
    fn send_object(&mut self, py: Python<'_>, target: usize, kind: u16, object: &Bound<'_, PyAny>) -> PyResult<Sent> {
        let mut encoder = std::mem::take(&mut self.encoder);
        let sent = encoder
            .encode(object, self.producers[target].arena())
            .and_then(|()| self.send_encoded(py, target, kind, &mut encoder));
        encoder.clear();
        self.encoder = encoder;
        sent
    }

    fn send_encoded(&mut self, py: Python<'_>, target: usize, kind: u16, encoder: &mut Encoder) -> PyResult<Sent> {
        if encoder.buffers.is_empty() && encoder.payload.len() <= self.producers[target].max_inline() {
            return self.push(py, target, kind, &[], &encoder.payload);
        }
        let mut parts = Vec::with_capacity(encoder.buffers.len() + 1);
        for buffer in encoder.buffers.drain(..) {
            match buffer {
                OutBuffer::Block(block) => parts.push(Part::Block(block)),
                OutBuffer::Memory { address, len, _owner } => match self.place(py, target, address, len)? {
                    Some(part) => parts.push(part),
                    None => return Ok(Sent::Interrupted),
                },
            }
        }
        // The block table shares the ring with the payload: leave room for it.
        if encoder.payload.len() <= self.producers[target].max_inline() {
            return self.push(py, target, kind, &parts, &encoder.payload);
        }
        match self.place(py, target, encoder.payload.as_ptr() as usize, encoder.payload.len())? {
            Some(part) => parts.push(part),
            None => return Ok(Sent::Interrupted),
        }
        self.push(py, target, kind | kind::PAYLOAD_IN_BUFFER, &parts, &[])
    }

    /// Brings a buffer into the arena, or where it will not fit, sends it ahead in fragments. None: interrupted.
    fn place(&mut self, py: Python<'_>, target: usize, from: usize, len: usize) -> PyResult<Option<Part>> {
        loop {
            let producer = &mut self.producers[target];
            if let Some(block) = producer.allocate(len).map_err(errors::corrupted)? {
                let to = block.as_mut_ptr() as usize;
                // SAFETY: `from` is kept alive by the encoder's owner, the block is ours and has room for `len` bytes.
                let copy = move || unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
                if len >= LONG_COPY {
                    py.detach(copy)
                } else {
                    copy()
                }
                return Ok(Some(Part::Block(Arc::new(block))));
            }
            if !producer.blocks_in_flight().map_err(errors::corrupted)? {
                return self.stream(py, target, from as *const u8, len);
            }
            producer.flush();
            let control = &self.control;
            // An error ends the wait; the next call into the producer reports it.
            let ready = || producer.worth_allocating().unwrap_or(true) || interrupted(control);
            wait_until(py, &self.own, ready, |_| Ok(()))?;
            if interrupted(&self.control) {
                return Ok(None);
            }
        }
    }

    fn stream(&mut self, py: Python<'_>, target: usize, data: *const u8, len: usize) -> PyResult<Option<Part>> {
        let longest = self.producers[target].fragment_len();
        let mut start = 0;
        while start < len {
            let piece = longest.min(len - start);
            // SAFETY: `data` is valid for `len` bytes, kept alive by the encoder's owner.
            let bytes = unsafe { std::slice::from_raw_parts(data.add(start), piece) };
            let sent = self.push_with(py, target, 0, piece, |producer| producer.push_fragment(bytes))?;
            if sent == Sent::Interrupted {
                return Ok(None);
            }
            start += piece;
        }
        Ok(Some(Part::Streamed(len as u64)))
    }

    fn push(&mut self, py: Python<'_>, target: usize, kind: u16, parts: &[Part], payload: &[u8]) -> PyResult<Sent> {
        let item = kind & !kind::PAYLOAD_IN_BUFFER == kind::ITEM;
        self.push_with(py, target, parts.len(), payload.len(), |producer| {
            if item { producer.push_item(kind, parts, payload) } else { producer.push(kind, parts, payload) }
        })
    }

    /// Pushes once there is room for a unit of that size.
    fn push_with(
        &mut self,
        py: Python<'_>,
        target: usize,
        blocks: usize,
        payload: usize,
        mut push: impl FnMut(&mut Producer) -> Result<Push, Corrupted>,
    ) -> PyResult<Sent> {
        loop {
            let producer = &mut self.producers[target];
            if push(producer).map_err(errors::corrupted)? == Push::Done {
                return Ok(Sent::Done);
            }
            producer.flush();
            let control = &self.control;
            let ready = || producer.writable(blocks, payload).unwrap_or(true) || interrupted(control);
            let deadline = self.deadline;
            wait_until(py, &self.own, ready, |_| match deadline {
                Some(deadline) if Instant::now() >= deadline => Err(PyTimeoutError::new_err("the peer does not read")),
                _ => Ok(()),
            })?;
            if interrupted(&self.control) {
                return Ok(Sent::Interrupted);
            }
        }
    }
}
