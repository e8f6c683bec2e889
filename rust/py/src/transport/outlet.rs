//! Defines the state of the thread that sends messages in a child process.
//!
//! If a command interrupts the sending of a message, the next call continues with the interrupted message, so that no
//! item is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use torchdata_core::cadence::Cadence;
use torchdata_core::error::Corrupted;
use torchdata_core::link::arena::Arena;
use torchdata_core::link::producer::{Part, Producer, Push};
use torchdata_core::link::{Link, OPAQUE, sampled_len};
use torchdata_core::process::board::BellRef;
use torchdata_core::protocol::{Choice, Dispatch, Permit, Reader, Stream};
use torchdata_core::stats::{PageRef, WaitRef};

use super::kinds as kind;
use super::owning::OwningProcess;
use super::snapshots::Relay;
use super::waiting::{wait_among, wait_until};
use crate::codec::{Encoder, OutBuffer, Source};
use crate::errors;

pub(super) fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Returns whether a command is pending. While items of the epoch `held` are being recomputed, only a stop or a later
/// epoch is regarded as a command.
pub(super) fn is_interrupted(control: &Option<Link>, held: Option<u32>) -> bool {
    let obeys = |link: &Link| held.is_none_or(|epoch| link.is_superseded(epoch).unwrap_or(true));
    control.as_ref().is_some_and(|link| link.pending() && obeys(link))
}

pub(super) struct Outlet {
    pub owner: OwningProcess,
    /// A worker process has one producer for all of its shards. The dispatching process has one producer for each
    /// worker.
    pub producers: Vec<Producer>,
    /// The arenas of the producers, in a separate list, because `tidy` frees memory while a wait borrows the producers.
    arenas: Vec<Arc<Arena>>,
    /// In a worker process, selects the shard of the next item. In the dispatching process, selects the worker that
    /// receives the next item.
    pub dispatch: Dispatch,
    pub has_shards: bool,
    /// Whether a shard may still have to recompute items.
    pub recomputes: bool,
    /// The shard that has ended but has not yet sent its end marker.
    pub closing: Option<usize>,
    pub entered: usize,
    pub own: BellRef,
    /// The link over which commands arrive. A pending command interrupts `Sender::pump`.
    pub control: Option<Link>,
    pub encoder: Encoder,
    pub more_comes: bool,
    pub departing: Option<Departing>,
    /// Whether all items were computed, so that only the end markers must still be sent.
    pub ending: bool,
    pub deadline: Option<Instant>,
    /// A callback without arguments, which may raise an exception to abandon the current message.
    pub tick: Option<Py<PyAny>>,
    pub taker: Option<(Py<PyAny>, Cadence)>,
    pub noter: Option<Py<PyAny>>,
    /// The latest snapshot of the dispatching process, which a worker process sends to the main process.
    pub relay: Option<Arc<Relay>>,
    /// For each shard or worker, the checksum that its items must have after the last recomputed item.
    pub expected: Vec<Option<u64>>,
    pub next_link: usize,
    pub meters: Vec<WaitRef>,
    /// Measures the wait until the reader requests another iteration over the items.
    pub idle: Option<WaitRef>,
    pub page: Option<PageRef>,
}

/// A message that could not be sent at once. Commands may be executed while the message waits for free space.
pub(super) struct Departing {
    /// The index of a shard in a worker process, or of a worker in the dispatching process.
    pub target: usize,
    pub kind: u16,
    pub encoder: Encoder,
    /// The buffers of the message that were already stored in the arena or sent in fragments. A payload that is too
    /// long for the ring is the last buffer.
    pub parts: Vec<Part>,
    pub streamed: usize,
}

impl Departing {
    fn new(target: usize, kind: u16, encoder: Encoder) -> Self {
        Self { target, kind, encoder, parts: Vec::new(), streamed: 0 }
    }
}

#[inline]
pub(super) fn turned(producers: &mut [Producer], has_shards: bool, target: usize) -> &mut Producer {
    if !has_shards {
        return &mut producers[target];
    }
    producers[0].turn_to(target as u16);
    &mut producers[0]
}

pub(super) fn tidy(py: Python<'_>, arenas: &[Arc<Arena>]) -> PyResult<bool> {
    let mut untidy = false;
    for arena in arenas.iter().filter(|arena| arena.is_untidy()) {
        untidy |= py.detach(|| arena.tidy(Instant::now())).map_err(errors::corrupted)?;
    }
    Ok(untidy)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// The message was sent, or the message was dropped because its reader does not want the message.
    Done,
    Interrupted,
}

#[inline]
pub(super) fn item_kind(encoder: &Encoder) -> u16 {
    kind::ITEM | if encoder.opaque { OPAQUE } else { 0 }
}

impl Outlet {
    pub fn new(mut producers: Vec<Producer>, shards: u16, own: BellRef, control: Option<Link>) -> Self {
        let has_shards = producers.len() == 1;
        if has_shards {
            producers[0].divide(shards);
        }
        Self {
            owner: OwningProcess::this(),
            arenas: producers.iter().map(|producer| Arc::clone(producer.arena())).collect(),
            dispatch: Dispatch::new(if has_shards { usize::from(shards) } else { producers.len() }),
            has_shards,
            recomputes: false,
            closing: None,
            entered: 0,
            producers,
            own,
            control,
            encoder: Encoder::default(),
            more_comes: false,
            departing: None,
            ending: false,
            deadline: None,
            tick: None,
            taker: None,
            noter: None,
            relay: None,
            expected: Vec::new(),
            next_link: 0,
            meters: Vec::new(),
            idle: None,
            page: None,
        }
    }

    pub fn begin(&mut self, stream: Stream) {
        (self.departing, self.closing) = (None, None);
        (self.ending, self.recomputes) = (false, false);
        if let Some((_, cadence)) = &mut self.taker {
            cadence.made(None, Instant::now()); // no early snapshot before the first item
        }
        self.producers.iter_mut().for_each(|producer| producer.begin(stream));
    }

    #[inline]
    pub fn producer(&mut self, target: usize) -> &mut Producer {
        turned(&mut self.producers, self.has_shards, target)
    }

    /// Returns a shard that must recompute items. A shard that recomputes items must run before other shards, because
    /// the main process waits for the shard's next new item.
    #[inline]
    pub fn recomputing(&mut self) -> Option<usize> {
        self.recomputes = self.recomputes && self.has_shards && self.producers[0].recomputing().is_some();
        if self.recomputes { self.producers[0].recomputing().map(usize::from) } else { None }
    }

    /// Returns the current epoch if a shard still recomputes items, or otherwise None. A requested function call waits
    /// until all items are recomputed, because the main process sent the request after it had received these items.
    fn held(&mut self) -> Option<u32> {
        self.recomputing().map(|_| self.producers[0].stream().epoch())
    }

    #[inline]
    pub fn wait_for_turn(&mut self, py: Python<'_>) -> PyResult<Option<Choice>> {
        let mut has_slept = false;
        loop {
            let held = self.held();
            if is_interrupted(&self.control, held) {
                self.flush();
                return Ok(None);
            }
            if let Some(shard) = self.recomputing() {
                return Ok(Some(Choice::Skip(shard)));
            }
            let Self { dispatch, producers, has_shards, .. } = self;
            let mut damage = None;
            let mut permit = |link: usize| match producers[link].permit() {
                Ok(permit) => permit,
                Err(error) => {
                    damage = Some(error);
                    Permit::Wait
                }
            };
            let choice = if *has_shards { dispatch.next_of_shards(permit(0)) } else { dispatch.next(permit) };
            if let Some(error) = damage {
                return Err(errors::corrupted(error));
            }
            let Choice::WaitFor(target) = choice else { return Ok(Some(choice)) };
            self.flush();
            let may_snapshot = !has_slept && self.taker.as_ref().is_some_and(|(_, cadence)| cadence.is_due_early());
            let Self { producers, arenas, control, meters, .. } = self;
            let (link, sleeps) = (if self.has_shards { 0 } else { target }, AtomicBool::new(false));
            // If the control word is damaged, the wait ends, because the next call of the producer reports the damage.
            let ready = || {
                producers[link].permit() != Ok(Permit::Wait)
                    || is_interrupted(control, None)
                    || may_snapshot && sleeps.load(Relaxed)
            };
            let asleep = || sleeps.store(true, Relaxed);
            wait_among(py, &self.own, meters.get(link), None, ready, asleep, |py| tidy(py, arenas).map(drop))?;
            has_slept = sleeps.into_inner();
            if may_snapshot && has_slept {
                self.snapshot(py, false)?; // if a command is pending, `pump` sends the rest of the note later
            }
        }
    }

    #[cold]
    pub fn count_snapshot(&self) {
        self.page.iter().for_each(PageRef::snapshot_sent);
    }

    pub fn flush(&mut self) {
        self.producers.iter_mut().for_each(Producer::flush);
    }

    pub fn send_ends(&mut self, py: Python<'_>) -> PyResult<Sent> {
        loop {
            if self.send_on(py)? == Sent::Interrupted {
                return Ok(Sent::Interrupted);
            }
            let Some(target) = self.dispatch.turn.next() else { return Ok(Sent::Done) };
            self.depart_end(target);
        }
    }

    fn depart_end(&mut self, target: usize) {
        let encoder = std::mem::take(&mut self.encoder);
        self.departing = Some(Departing::new(target, kind::END, encoder));
        self.dispatch.turn.end(target);
    }

    pub fn close_shard(&mut self, py: Python<'_>, shard: usize) -> PyResult<()> {
        self.check_all_recomputed(shard)?;
        self.closing = Some(shard);
        self.depart_note(py, shard)
    }

    #[inline]
    pub fn settle(&mut self, py: Python<'_>) -> PyResult<Sent> {
        if self.send_on(py)? == Sent::Interrupted {
            return Ok(Sent::Interrupted);
        }
        let Some(shard) = self.closing.take() else { return Ok(Sent::Done) };
        self.depart_end(shard);
        self.send_on(py)
    }

    #[inline]
    pub fn depart_item(&mut self, target: usize, item: &Bound<'_, PyAny>) -> PyResult<()> {
        let Self { encoder, producers, has_shards, .. } = self;
        let producer = turned(producers, *has_shards, target);
        if let Err(error) = encoder.encode(item, producer.arena()) {
            encoder.clear();
            return Err(error);
        }
        if encoder.buffers.is_empty()
            && encoder.payload.len() <= producer.max_inline()
            && producer.push_item(item_kind(encoder), &[], &encoder.payload).map_err(errors::corrupted)? == Push::Done
        {
            encoder.clear();
            return Ok(());
        }
        producer.give_up(); // removes the fragments of an item whose sending failed
        let encoder = std::mem::take(encoder);
        let kind = item_kind(&encoder);
        self.departing = Some(Departing::new(target, kind, encoder));
        Ok(())
    }

    /// Sends a snapshot, which consists of `head` and `content`. Returns false if a command is pending.
    pub fn send_content(
        &mut self,
        py: Python<'_>,
        target: usize,
        kind: u16,
        head: &[u8],
        content: &Bound<'_, PyBytes>,
    ) -> PyResult<bool> {
        let mut encoder = std::mem::take(&mut self.encoder);
        encoder.clear();
        encoder.payload.extend_from_slice(head);
        let bytes = content.as_bytes();
        if !bytes.is_empty() {
            let source = Source::dense(bytes.as_ptr(), bytes.len(), Some(content.as_any()));
            encoder.buffers.push(OutBuffer::Memory(source));
        }
        self.departing = Some(Departing::new(target, kind, encoder));
        Ok(self.send_on(py)? == Sent::Done)
    }

    /// Encodes an object as the next message, which `send_on` sends. The bytes in `appended` follow the object.
    pub fn depart(&mut self, target: usize, kind: u16, object: &Bound<'_, PyAny>, appended: &[u8]) -> PyResult<()> {
        let mut encoder = std::mem::take(&mut self.encoder);
        encoder.encode(object, self.producer(target).arena())?;
        encoder.payload.extend_from_slice(appended);
        self.owner.check()?; // pickling runs user code, which may have forked this process
        self.producer(target).give_up(); // removes the fragments of a message whose sending failed
        self.departing = Some(Departing::new(target, kind, encoder));
        Ok(())
    }

    pub fn depart_note(&mut self, py: Python<'_>, shard: usize) -> PyResult<()> {
        let Some(noter) = &self.noter else { return Ok(()) };
        let note = noter.call1(py, (shard,))?;
        if note.is_none(py) { Ok(()) } else { self.depart(shard, kind::NOTE, note.bind(py), &[]) }
    }

    #[inline]
    pub fn send_on(&mut self, py: Python<'_>) -> PyResult<Sent> {
        if self.departing.is_none() { Ok(Sent::Done) } else { self.send_rest(py) }
    }

    /// Continues to send the current message, or abandons this message after an exception or the deadline.
    fn send_rest(&mut self, py: Python<'_>) -> PyResult<Sent> {
        let Some(mut departing) = self.departing.take() else { return Ok(Sent::Done) };
        let sent = self.send(py, &mut departing)?;
        if sent == Sent::Interrupted {
            self.departing = Some(departing);
        } else {
            if departing.kind == kind::STATE {
                self.count_snapshot();
            }
            departing.encoder.clear();
            self.encoder = departing.encoder;
        }
        Ok(sent)
    }

    fn send(&mut self, py: Python<'_>, departing: &mut Departing) -> PyResult<Sent> {
        let Departing { target, kind, encoder, parts, streamed } = departing;
        let inline = encoder.payload.len() <= self.producer(*target).max_inline();
        while parts.len() < encoder.buffers.len() + usize::from(!inline) {
            let stored = match encoder.buffers.get_mut(parts.len()) {
                Some(OutBuffer::Block(block)) => Stored::At(Part::Block(Arc::clone(block))),
                Some(OutBuffer::Memory(source)) => self.put_in_memory(py, *target, source, streamed)?,
                None => {
                    let payload = &encoder.payload;
                    let mut payload = Source::dense(payload.as_ptr(), payload.len(), None);
                    self.put_in_memory(py, *target, &mut payload, streamed)?
                }
            };
            match stored {
                Stored::At(part) => parts.push(part),
                Stored::Nowhere(sent) => return Ok(sent),
            }
            *streamed = 0;
        }
        let (kind, payload) = match inline {
            true => (*kind, &encoder.payload[..]),
            false => (*kind | kind::PAYLOAD_IN_BUFFER, &[][..]),
        };
        let soon = self.more_comes;
        self.push_with(py, *target, parts.len(), payload.len(), |producer| match kind & kind::WHAT {
            kind::ITEM => producer.push_item(kind, parts, payload),
            _ if soon => producer.push_soon(kind, parts, payload),
            _ => producer.push(kind, parts, payload),
        })
    }

    /// Copies a buffer of a message into the arena. If the arena is too full or too small, sends the buffer in
    /// fragments, from byte `streamed` on.
    fn put_in_memory(
        &mut self,
        py: Python<'_>,
        target: usize,
        source: &mut Source,
        streamed: &mut usize,
    ) -> PyResult<Stored> {
        let len = source.len();
        if *streamed == 0
            && let Some(stored) = self.put_in_arena(py, target, source)?
        {
            return Ok(stored);
        }
        let from = source.make_dense(py)?;
        let longest = self.producer(target).max_inline();
        while *streamed < len {
            let piece = longest.min(len - *streamed);
            // SAFETY: the owner of the source keeps the `len` bytes at `from` alive.
            let bytes = unsafe { std::slice::from_raw_parts(from.add(*streamed), piece) };
            let before = *streamed;
            let sent = self.push_with(py, target, 0, piece, |producer| {
                let pushed = producer.push_fragment(bytes)?;
                if pushed == Push::Done {
                    *streamed += piece;
                }
                Ok(pushed)
            })?;
            if *streamed == before {
                return Ok(Stored::Nowhere(sent));
            }
        }
        // SAFETY: the owner of the source keeps the `len` bytes at `from` alive.
        Ok(Stored::At(Part::Streamed(unsafe { sampled_len(from, len) })))
    }

    /// Copies a buffer of a message into the arena. Returns None if there is not enough memory, and waiting cannot free
    /// more.
    fn put_in_arena(&mut self, py: Python<'_>, target: usize, source: &Source) -> PyResult<Option<Stored>> {
        loop {
            let producer = self.producer(target);
            if let Some(block) = producer.allocate(source.len()).map_err(errors::corrupted)? {
                // SAFETY: this function owns the block, which has room for the source.
                unsafe { source.copy(py, block.as_mut_ptr()) };
                return Ok(Some(Stored::At(Part::Block(Arc::new(block)))));
            }
            if !producer.blocks_in_flight().map_err(errors::corrupted)? {
                return Ok(None);
            }
            // A damaged link also ends the wait. The next call of the producer reports the damage.
            let sent = self.wait_for_room(py, target, |producer| producer.worth_allocating().unwrap_or(true))?;
            if let Some(sent) = sent {
                return Ok(Some(Stored::Nowhere(sent)));
            }
        }
    }

    /// Pushes a message into the ring, and waits for space if the ring is full. If the reader no longer wants the
    /// message, the message is dropped.
    fn push_with(
        &mut self,
        py: Python<'_>,
        target: usize,
        blocks: usize,
        payload: usize,
        mut push: impl FnMut(&mut Producer) -> Result<Push, Corrupted>,
    ) -> PyResult<Sent> {
        loop {
            if push(self.producer(target)).map_err(errors::corrupted)? == Push::Done {
                return Ok(Sent::Done);
            }
            let room = |producer: &mut Producer| producer.writable(blocks, payload).unwrap_or(true);
            if let Some(sent) = self.wait_for_room(py, target, room)? {
                return Ok(sent);
            }
        }
    }

    /// Waits for free space. Returns None when there is space, or the reason why the message can no longer be sent.
    fn wait_for_room(
        &mut self,
        py: Python<'_>,
        target: usize,
        mut room: impl FnMut(&mut Producer) -> bool + Send,
    ) -> PyResult<Option<Sent>> {
        let held = self.held();
        let Self { producers, has_shards, own, control, deadline, tick, meters, .. } = self;
        let producer = turned(producers, *has_shards, target);
        producer.flush();
        let unwanted =
            |producer: &mut Producer| matches!(producer.reader(), Ok(Reader::Left | Reader::Ahead | Reader::Done));
        let ready = || room(producer) || is_interrupted(control, held) || unwanted(producer);
        wait_until(py, own, meters.get(if *has_shards { 0 } else { target }), ready, |py| {
            if is_over(*deadline) {
                return Err(PyTimeoutError::new_err("the receiving process does not read"));
            }
            tick.as_ref().map_or(Ok(()), |tick| tick.call0(py).map(drop))
        })?;
        if is_interrupted(control, held) {
            return Ok(Some(Sent::Interrupted));
        }
        let is_unwanted = unwanted(producer) && !room(producer);
        Ok(is_unwanted.then(|| {
            producer.give_up();
            producer.skip(); // the number of items is not used after the end of a stream
            Sent::Done
        }))
    }
}

enum Stored {
    At(Part),
    /// The buffer was not stored, because a command is pending or the reader does not want the message.
    Nowhere(Sent),
}
