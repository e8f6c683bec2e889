//! The things that the sending thread of a child has in hand: the links, the unit that is on its way out, and what it
//! waits for.
//!
//! Owned by a [`Sender`](super::sender::Sender), which hands it to one thread at a time. A unit that was begun is kept
//! if a command interrupts it, and goes out when the pump is called again: no command costs an item.

use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use torchdata_core::error::Corrupted;
use torchdata_core::link::arena::Arena;
use torchdata_core::link::producer::{Part, Producer, Push};
use torchdata_core::link::{OPAQUE, Probe, sampled_len};
use torchdata_core::process::board::BellRef;
use torchdata_core::protocol::{Deal, Dealing, Permit, Reader, Stream};
use torchdata_core::stats::{PageRef, WaitRef};

use super::kinds as kind;
use super::owning::OwningProcess;
use super::snapshots::{Cadence, Relay};
use super::waiting::wait_until;
use crate::codec::{Encoder, OutBuffer, Owner, Source};
use crate::errors;

pub(super) fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Whether a command waits, other than one that is `held` (see `Outlet::held`).
pub(super) fn is_interrupted(control: &Option<Probe>, held: Option<u32>) -> bool {
    let obeys = |probe: &Probe| held.is_none_or(|epoch| probe.is_superseded(epoch).unwrap_or(true));
    control.as_ref().is_some_and(|probe| probe.pending() && obeys(probe))
}

/// The parts of a thread that sends.
pub(super) struct Outlet {
    /// The process that sends.
    pub owner: OwningProcess,
    /// One, of a worker, for all its shards; or by worker, of the dispatching process.
    pub producers: Vec<Producer>,
    /// Theirs, in the same order: looked after while a producer waits.
    arenas: Vec<Arc<Arena>>,
    /// The turn of the shards, or of the workers that items are dealt to.
    pub dealing: Dealing,
    /// Whether those in turn are shards, each with an iterator of its own. The dispatching process has one for all.
    pub has_shards: bool,
    /// Whether a shard may still make items again.
    pub owes: bool,
    /// The shard whose iterator has ended, and whose end is to be sent.
    pub closing: Option<usize>,
    /// The shard whose iterator was asked last; beyond all if the next one is to be entered.
    pub entered: usize,
    pub own: BellRef,
    /// The control link: what waits there interrupts the pump.
    pub control: Option<Probe>,
    pub encoder: Encoder,
    /// Whether another message follows at once, so that the peer need not be woken for this one.
    pub more_comes: bool,
    /// A unit that was begun and is not out yet.
    pub departing: Option<Departing>,
    /// Whether all items of the pass were made, and only ends are to be sent.
    pub ending: bool,
    /// When sending gives up with a TimeoutError; None: never.
    pub deadline: Option<Instant>,
    /// The function that makes snapshots of the graph, and its times.
    pub taker: Option<(Py<PyAny>, Cadence)>,
    /// The function that returns the next note for the main process, or None.
    pub noter: Option<Py<PyAny>>,
    /// In a worker: where those of the dispatching process wait to be passed on.
    pub relay: Option<Arc<Relay>>,
    /// By shard or reader: the checksum behind the items that are made again; None if that is not compared.
    pub expected: Vec<Option<u64>>,
    /// The link that gets the next snapshot.
    pub next_link: usize,
    /// By reader: where waits for room and for leave are counted. Empty if nothing counts them.
    pub meters: Vec<WaitRef>,
    /// Where waits for another pass are counted.
    pub idle: Option<WaitRef>,
    /// Where snapshots are counted that went out.
    pub page: Option<PageRef>,
}

/// A unit on its way out. It waits for room, and may have to let a command go first.
pub(super) struct Departing {
    /// The shard that it is of, or the reader that it is for.
    pub target: usize,
    pub kind: u16,
    pub encoder: Encoder,
    /// Buffers of the encoder, and the payload behind them if it is long, that have found their place.
    pub parts: Vec<Part>,
    /// Bytes of the next one that were sent in fragments.
    pub streamed: usize,
}

/// Returns the producer of a shard, turned to it, or of a reader.
#[inline]
fn turned(producers: &mut [Producer], has_shards: bool, target: usize) -> &mut Producer {
    if !has_shards {
        return &mut producers[target];
    }
    producers[0].turn_to(target as u16);
    &mut producers[0]
}

/// Gives shared memory back that has not been used for a while; whether some may go back later.
pub(super) fn tidy(py: Python<'_>, arenas: &[Arc<Arena>]) -> PyResult<bool> {
    let mut untidy = false;
    for arena in arenas.iter().filter(|arena| arena.is_untidy()) {
        untidy |= py.detach(|| arena.tidy()).map_err(errors::corrupted)?;
    }
    Ok(untidy)
}

/// The outcome of an attempt to send.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is out, or its reader wants it no more.
    Done,
    /// A command waits.
    Interrupted,
}

/// The kind of the item that was encoded.
#[inline]
pub(super) fn item_kind(encoder: &Encoder) -> u16 {
    kind::ITEM | if encoder.opaque { OPAQUE } else { 0 }
}

impl Outlet {
    /// Several producers are those of the dispatching process; one has so many shards.
    pub fn new(mut producers: Vec<Producer>, shards: u16, own: BellRef, control: Option<Probe>) -> Self {
        let has_shards = producers.len() == 1;
        if has_shards {
            producers[0].divide(shards);
        }
        Self {
            owner: OwningProcess::this(),
            arenas: producers.iter().map(|producer| Arc::clone(producer.arena())).collect(),
            dealing: Dealing::new(if has_shards { usize::from(shards) } else { producers.len() }),
            has_shards,
            owes: false,
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
        (self.ending, self.owes) = (false, false);
        self.producers.iter_mut().for_each(|producer| producer.begin(stream));
    }

    /// Begins the next pass.
    pub fn begin_next(&mut self) {
        self.begin(self.producers[0].stream().next_pass());
        self.dealing.begin();
    }

    /// The producer of a shard, turned to it, or of a reader.
    #[inline]
    pub fn producer(&mut self, target: usize) -> &mut Producer {
        turned(&mut self.producers, self.has_shards, target)
    }

    /// The shard of a worker that still makes items again. All shards do that first: main has these items, and waits for
    /// those behind them.
    #[inline]
    fn owing(&mut self) -> Option<usize> {
        self.owes = self.owes && self.has_shards && self.producers[0].owing().is_some();
        if self.owes { self.producers[0].owing().map(usize::from) } else { None }
    }

    /// The epoch of which a worker still makes items again. Calls wait meanwhile: to main those items were made before.
    fn held(&mut self) -> Option<u32> {
        self.owing().map(|_| self.producers[0].stream().epoch())
    }

    /// Returns the fate of the next item, once that is clear; None if a command waits.
    #[inline]
    pub fn wait_for_turn(&mut self, py: Python<'_>) -> PyResult<Option<Deal>> {
        loop {
            let held = self.held();
            if is_interrupted(&self.control, held) {
                self.flush();
                return Ok(None);
            }
            if let Some(shard) = self.owing() {
                return Ok(Some(Deal::Skip(shard)));
            }
            let Self { dealing, producers, has_shards, .. } = self;
            let mut damage = None;
            let mut permit = |link: usize| match producers[link].permit() {
                Ok(permit) => permit,
                Err(error) => {
                    damage = Some(error);
                    Permit::Wait
                }
            };
            let deal = if *has_shards { dealing.next_of_shards(permit(0)) } else { dealing.next(permit) };
            if let Some(error) = damage {
                return Err(errors::corrupted(error));
            }
            let Deal::WaitFor(target) = deal else { return Ok(Some(deal)) };
            self.flush();
            let Self { producers, arenas, control, meters, .. } = self;
            let link = if self.has_shards { 0 } else { target };
            // A damaged word ends the wait, and is reported then.
            let ready = || producers[link].permit() != Ok(Permit::Wait) || is_interrupted(control, None);
            wait_until(py, &self.own, meters.get(link), ready, || (), |py| tidy(py, arenas).map(drop))?;
        }
    }

    #[cold]
    pub fn count_snapshot(&self) {
        self.page.iter().for_each(PageRef::snapshot_sent);
    }

    fn flush(&mut self) {
        self.producers.iter_mut().for_each(Producer::flush);
    }

    pub fn send_ends(&mut self, py: Python<'_>) -> PyResult<Sent> {
        loop {
            if self.go_on(py)? == Sent::Interrupted {
                return Ok(Sent::Interrupted);
            }
            let Some(target) = self.dealing.turn() else { return Ok(Sent::Done) };
            self.depart_end(target);
        }
    }

    fn depart_end(&mut self, target: usize) {
        let encoder = std::mem::take(&mut self.encoder);
        self.departing = Some(Departing { target, kind: kind::END, encoder, parts: Vec::new(), streamed: 0 });
        self.dealing.end(target);
    }

    /// Ends a shard, whose iterator has ended: its last note, and then its end, are sent by `settle`.
    pub fn close_shard(&mut self, py: Python<'_>, shard: usize) -> PyResult<()> {
        self.check_all_came_again(shard)?;
        self.closing = Some(shard);
        self.depart_note(py, shard)
    }

    /// Sends what was begun, and the end of a shard behind it.
    #[inline]
    pub fn settle(&mut self, py: Python<'_>) -> PyResult<Sent> {
        if self.go_on(py)? == Sent::Interrupted {
            return Ok(Sent::Interrupted);
        }
        let Some(shard) = self.closing.take() else { return Ok(Sent::Done) };
        self.depart_end(shard);
        self.go_on(py)
    }

    /// Encodes an item, and sends it at once if it is small and there is room: the usual item is spared what
    /// follows.
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
        producer.give_up(); // fragments of what an exception kept from being sent
        let encoder = std::mem::take(encoder);
        let kind = item_kind(&encoder);
        self.departing = Some(Departing { target, kind, encoder, parts: Vec::new(), streamed: 0 });
        Ok(())
    }

    /// Encodes an object, to be sent by `go_on` with more bytes behind it.
    pub fn depart(&mut self, target: usize, kind: u16, object: &Bound<'_, PyAny>, behind: &[u8]) -> PyResult<()> {
        let mut encoder = std::mem::take(&mut self.encoder);
        encoder.encode(object, self.producer(target).arena())?;
        encoder.payload.extend_from_slice(behind);
        self.owner.check()?; // what was pickled is the user's, too
        self.producer(target).give_up(); // fragments of a message that an exception kept from being sent
        self.departing = Some(Departing { target, kind, encoder, parts: Vec::new(), streamed: 0 });
        Ok(())
    }

    /// Encodes the note of a shard that waits for the main process, if there is one, to be sent by `go_on`.
    pub fn depart_note(&mut self, py: Python<'_>, shard: usize) -> PyResult<()> {
        let Some(noter) = &self.noter else { return Ok(()) };
        let note = noter.call1(py, (shard,))?;
        if note.is_none(py) { Ok(()) } else { self.depart(shard, kind::NOTE, note.bind(py), &[]) }
    }

    #[inline]
    pub fn go_on(&mut self, py: Python<'_>) -> PyResult<Sent> {
        if self.departing.is_none() { Ok(Sent::Done) } else { self.go_on_with(py, None) }
    }

    /// Sends what was begun. An exception (of a signal handler, of `tick`, for want of time) gives it up.
    pub fn go_on_with(&mut self, py: Python<'_>, tick: Option<&Bound<'_, PyAny>>) -> PyResult<Sent> {
        let Some(mut departing) = self.departing.take() else { return Ok(Sent::Done) };
        let sent = self.send(py, &mut departing, tick)?;
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

    fn send(&mut self, py: Python<'_>, departing: &mut Departing, tick: Option<&Bound<'_, PyAny>>) -> PyResult<Sent> {
        let Departing { target, kind, encoder, parts, streamed } = departing;
        let inline = encoder.payload.len() <= self.producer(*target).max_inline();
        while parts.len() < encoder.buffers.len() + usize::from(!inline) {
            let placed = match encoder.buffers.get_mut(parts.len()) {
                Some(OutBuffer::Block(block)) => Placed::At(Part::Block(Arc::clone(block))),
                Some(OutBuffer::Memory(source)) => self.put_in_memory(py, *target, source, streamed, tick)?,
                None => {
                    let payload = &encoder.payload;
                    let mut payload = Source::dense(payload.as_ptr(), payload.len(), Owner::Caller);
                    self.put_in_memory(py, *target, &mut payload, streamed, tick)?
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
        let soon = self.more_comes;
        self.push_with(py, *target, parts.len(), payload.len(), tick, |producer| match kind & kind::WHAT {
            kind::ITEM => producer.push_item(kind, parts, payload),
            _ if soon => producer.push_soon(kind, parts, payload),
            _ => producer.push(kind, parts, payload),
        })
    }

    /// Brings a buffer into the arena, or if it will not fit, sends it ahead in fragments, from byte `streamed` on.
    fn put_in_memory(
        &mut self,
        py: Python<'_>,
        target: usize,
        source: &mut Source,
        streamed: &mut usize,
        tick: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Placed> {
        let len = source.len();
        if *streamed == 0
            && let Some(placed) = self.put_in_arena(py, target, source, tick)?
        {
            return Ok(placed);
        }
        let from = source.make_dense(py)?;
        let longest = self.producer(target).fragment_len();
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
        // SAFETY: as above.
        Ok(Placed::At(Part::Streamed(unsafe { sampled_len(from, len) })))
    }

    /// Copies a buffer into a block, waiting for one if some are on their way back; None if there will be none.
    fn put_in_arena(
        &mut self,
        py: Python<'_>,
        target: usize,
        source: &Source,
        tick: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<Placed>> {
        loop {
            let producer = self.producer(target);
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

    /// Pushes once there is room for a unit of that size. Done, too, if the reader wants it no more.
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
            if push(self.producer(target)).map_err(errors::corrupted)? == Push::Done {
                return Ok(Sent::Done);
            }
            let room = |producer: &mut Producer| producer.writable(blocks, payload).unwrap_or(true);
            if let Some(sent) = self.wait_for_room(py, target, tick, room)? {
                return Ok(sent);
            }
        }
    }

    /// Waits for room; returns whether something else ended the wait.
    fn wait_for_room(
        &mut self,
        py: Python<'_>,
        target: usize,
        tick: Option<&Bound<'_, PyAny>>,
        mut room: impl FnMut(&mut Producer) -> bool + Send,
    ) -> PyResult<Option<Sent>> {
        let held = self.held();
        let Self { producers, has_shards, own, control, deadline, meters, .. } = self;
        let producer = turned(producers, *has_shards, target);
        producer.flush();
        let unwanted =
            |producer: &mut Producer| matches!(producer.reader(), Ok(Reader::Left | Reader::Ahead | Reader::Done));
        let ready = || room(producer) || is_interrupted(control, held) || unwanted(producer);
        wait_until(
            py,
            own,
            meters.get(if *has_shards { 0 } else { target }),
            ready,
            || (),
            |_| {
                if is_over(*deadline) {
                    return Err(PyTimeoutError::new_err("the peer does not read"));
                }
                tick.map_or(Ok(()), |tick| tick.call0().map(drop))
            },
        )?;
        if is_interrupted(control, held) {
            return Ok(Some(Sent::Interrupted));
        }
        // A unit that was begun for a reader that wants no more goes nowhere.
        let gone = unwanted(producer) && !room(producer);
        Ok(gone.then(|| {
            producer.give_up();
            producer.skip(); // should it be an end, nobody counts it any more
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
