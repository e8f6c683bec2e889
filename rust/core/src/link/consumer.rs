//! The consumer's end of a link.
//!
//! Runs in the process that the items are for. Nothing that the producer wrote is trusted: a unit is copied out of
//! shared memory, every length and offset is checked, and so is its checksum, before anything follows from it. A
//! violation is [`Corrupted`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cursor::ConsumerCursor;
use super::header::{BLOCK_ALIGN, Layout};
use super::lease::{Lease, Returns};
use super::unit::{First, KIND_FIRST_FRAGMENT, KIND_FRAGMENT, OPAQUE, UNIT_HEADER, UnitHeader, bare_len};
use crate::error::{Corrupted, NoMemory, TakeError};
use crate::integrity::{Digest, open, seal};
use crate::process::board::BellRef;
use crate::protocol::{Ahead, Grant, Judgement, Receiving, Stream};
use crate::stats::{FlowRef, add};

/// A buffer of a unit, in the consumer's hands. Clones are the same memory.
#[derive(Debug, Clone)]
pub enum Buffer {
    /// A block of shared memory.
    Leased(Arc<Lease>),
    /// Memory of the consumer's own, put together from fragments or copied out.
    Owned(Arc<Vec<u8>>),
}

impl Buffer {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        match self {
            Self::Owned(bytes) => bytes.len(),
            Self::Leased(lease) => lease.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same bytes in memory of this process's own, if it gets some; a lease is given back with its last clone.
    pub fn into_owned(self) -> Self {
        match &self {
            Self::Owned(_) => self,
            Self::Leased(lease) => lease.private_copy().map_or(self, |copy| Self::Owned(Arc::new(copy))),
        }
    }
}

/// A unit taken out of the ring. One is used again and again: its vectors keep their memory.
#[derive(Debug, Default)]
pub struct Unit {
    /// The kind that the producer gave it.
    pub kind: u16,
    /// The producer's shard that it is of, counted in the producer's process.
    pub shard: u16,
    /// Its inline payload.
    pub payload: Vec<u8>,
    /// Its large buffers, in the order in which they were sent.
    pub buffers: Vec<Buffer>,
    /// A number that tells it from other units, wherever and whenever they were sent; 0 if its bytes do not tell.
    pub digest: u64,
}

/// The consumer's end.
#[derive(Debug)]
pub struct Consumer {
    layout: Arc<Layout>,
    cursor: ConsumerCursor,
    returns: Arc<Returns>,
    peer: BellRef,
    /// Block table of the unit that is being read: offsets and lengths.
    table: Vec<[u64; 2]>,
    /// Buffers put together from fragments, waiting for the unit that refers to them.
    streamed: Vec<u8>,
    receiving: Receiving,
    /// The grant that the producer was told last.
    told: Grant,
    /// Whether the next unit belongs to a later stream: until that begins, there is nothing to read.
    early: bool,
    /// Whether items of this link are to wake this process.
    wanted: bool,
    /// Items taken in this stream.
    taken: u64,
    /// Items taken since the producer was last considered for a wake-up.
    unrung: u64,
    /// Bytes of the ring given back since then.
    unrung_bytes: u64,
    /// Bytes of blocks taken since then.
    unrung_blocks: u64,
    /// How far the producer may be ahead in bytes.
    ahead: Ahead,
    /// Items taken in all earlier streams, and where all and other statistics are mirrored.
    before: u64,
    flow: FlowRef,
}

impl Consumer {
    pub(crate) fn new(layout: Arc<Layout>, peer: BellRef) -> Self {
        Self {
            cursor: ConsumerCursor::new(layout.config.ring_capacity),
            returns: Arc::new(Returns::new(Arc::clone(&layout), peer.clone())),
            before: 0,
            flow: layout.flow(false),
            layout,
            peer,
            table: Vec::new(),
            streamed: Vec::new(),
            receiving: Receiving::default(),
            told: Receiving::default().grant(),
            early: false,
            wanted: true,
            taken: 0,
            unrung: 0,
            unrung_bytes: 0,
            unrung_blocks: 0,
            ahead: Ahead::default(),
        }
    }

    /// The bell of the producer's process.
    pub(super) fn peer(&self) -> &BellRef {
        &self.peer
    }

    /// Reads on in the stream of `earlier` and continues its counts. Leases stay with the memory of `earlier`.
    pub(super) fn follow(&mut self, earlier: &Self) {
        self.count_into(earlier.flow.clone());
        self.begin(earlier.receiving.stream(), earlier.receiving.window());
    }

    /// Counts there from now on, on top of what is there.
    pub fn count_into(&mut self, flow: FlowRef) {
        self.before = flow.items.load(Ordering::Relaxed).wrapping_sub(self.taken);
        self.flow = flow;
    }

    /// Where this end counts.
    pub fn flow(&self) -> &FlowRef {
        &self.flow
    }

    /// Begins to read a stream of which the producer may be `window` items ahead.
    pub fn begin(&mut self, stream: Stream, window: u64) {
        self.before = self.before.wrapping_add(self.taken);
        self.taken = 0;
        self.unrung = 0;
        self.early = false;
        self.streamed = Vec::new();
        let grant = self.receiving.begin(stream, window);
        self.flow.window.store(window, Ordering::Relaxed);
        self.tell(grant);
    }

    /// Tells the producer what is wanted, and wakes it.
    fn tell(&mut self, grant: Grant) {
        self.grant(grant);
        self.ring();
    }

    #[inline]
    fn grant(&mut self, grant: Grant) {
        self.told = grant;
        // SYNC(grant): pairs with Producer::permit.
        self.layout.header().granted.store(grant.word(), Ordering::Release);
    }

    /// Says whether items of this link are to wake this process when it sleeps. To be called before the look at what is
    /// there: items that come before it says so wake nobody. All other units do in any case.
    #[inline]
    pub fn want_items(&mut self, wanted: bool) {
        if wanted == self.wanted {
            return;
        }
        self.wanted = wanted;
        let word = &self.layout.header().items_wanted;
        if wanted { word.raise() } else { word.lower() }
    }

    /// Tells the producer that no more of this pass is wanted.
    pub fn leave(&mut self) {
        self.tell(self.receiving.leave());
    }

    /// Tells the producer that no more of this epoch is wanted, whether or not it was read.
    pub fn finish(&mut self, epoch: u32) {
        let grant = self.receiving.finish(epoch);
        self.tell(grant);
    }

    /// The stream that is read.
    pub fn stream(&self) -> Stream {
        self.receiving.stream()
    }

    /// Tells the producer that `count` messages were dealt with, and in which `place` this process was then: a number
    /// of its own.
    pub fn acknowledge(&self, count: u64, place: u64) {
        self.layout.header().obeyed_at.store(seal(place), Ordering::Relaxed);
        // SYNC(acknowledge): pairs with Producer::acknowledged and Probe::obeyed_at.
        self.layout.header().acknowledged.store(seal(count), Ordering::Release);
        self.peer.ring();
    }

    /// Whether the producer's process waits for somebody else before it can go on (see [`crate::link::Announcer`]).
    pub fn starves(&self) -> bool {
        // SYNC(starve): pairs with Announcer::starve. A damaged word is put right at the producer's next look around.
        let epoch = open(self.layout.header().starving.load(Ordering::Acquire));
        epoch == Some(u64::from(self.receiving.stream().epoch()))
    }

    /// Items that were taken in this stream.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Items that the producer may be ahead.
    pub fn window(&self) -> u64 {
        self.receiving.window()
    }

    /// Stops (0) or resumes (the window) the producer's running ahead; what it has sent stays valid.
    pub fn set_window(&mut self, window: u64) {
        let grant = self.receiving.set_window(window);
        self.tell(grant);
    }

    #[inline]
    fn count(&mut self) {
        self.taken += 1;
        self.flow.items.store(self.before.wrapping_add(self.taken), Ordering::Relaxed);
    }

    /// Counts an item as taken and lets the producer make another one.
    ///
    /// A producer that sleeps is woken when half its window is free, or at once when nothing is left in the ring.
    #[inline]
    pub fn item_taken(&mut self) {
        self.count();
        self.unrung += 1;
        let grant = self.receiving.take();
        self.grant(grant);
        let window = self.receiving.window();
        if self.unrung.saturating_mul(2) >= window || self.cursor.available(&self.layout.header().tail) == Ok(0) {
            self.ring_producer();
        }
    }

    /// Counts an item as taken that was taken in before its turn, and lets the producer make another one, even if it is
    /// not to run ahead: another process waits for its progress.
    pub fn item_taken_in(&mut self) {
        self.count();
        self.receiving.take();
        self.tell(self.receiving.one_more());
    }

    /// Lets a producer that was halted make one more item: somebody else waits for it to come on.
    pub fn grant_one_more(&mut self) {
        let one_more = self.receiving.one_more();
        if self.told != one_more {
            self.tell(one_more);
        }
    }

    /// Halts a producer again that was relieved.
    pub fn restore_grant(&mut self) {
        let grant = self.receiving.grant();
        if self.told != grant {
            self.tell(grant);
        }
    }

    /// Notes that this process waits for the producer's next item.
    pub fn wait(&mut self) {
        if self.ahead.wait() {
            self.layout.header().ahead.store(seal(self.ahead.allowed()), Ordering::Relaxed);
        }
    }

    fn ring_producer(&mut self) {
        self.unrung = 0;
        self.unrung_bytes = 0;
        self.unrung_blocks = 0;
        self.ring();
    }

    /// Gives a unit's bytes back, and wakes a producer that sleeps for want of them when half the ring is free again.
    fn release(&mut self, total: u64) {
        self.cursor.release(&self.layout.header().head, total);
        self.unrung_bytes += total;
        if self.unrung_bytes * 2 >= self.layout.config.ring_capacity {
            self.ring_producer();
        }
    }

    /// Wakes a producer that sleeps because it is as many bytes ahead as it may be when half of them are taken.
    #[inline]
    fn count_blocks(&mut self, buffers: &[Buffer]) {
        if buffers.is_empty() {
            return;
        }
        let bytes: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        self.ahead.take(bytes);
        self.unrung_blocks += bytes;
        if self.unrung_blocks >= Ahead::LEAST / 2 {
            self.ring_producer();
        }
    }

    /// Whether something waits to be read: a unit of this stream, or what is left of earlier ones.
    #[inline]
    pub fn readable(&mut self) -> Result<bool, Corrupted> {
        Ok(!self.early && self.cursor.available(&self.layout.header().tail)? > 0)
    }

    /// Bytes that this side holds in leases.
    pub fn leased(&self) -> u64 {
        self.returns.bytes()
    }

    /// Whether leasing `len` more bytes would starve the producer, so that a buffer should be copied out instead.
    ///
    /// At most half of the arena, and of the blocks that it may be cut into, is ever leased: the rest stays for what is
    /// in flight.
    pub fn should_copy(&self, len: usize) -> bool {
        let config = self.layout.config;
        let leases = self.returns.count();
        (self.leased() + len as u64) * 2 > config.arena_capacity || (leases + 1) * 2 > config.return_capacity
    }

    /// Takes the next unit of the stream that is read in place of what `unit` was; false if none waits.
    ///
    /// Units of earlier streams are dropped undecoded and their blocks go back; those of later ones stay where they
    /// are.
    pub fn take(&mut self, unit: &mut Unit) -> Result<bool, TakeError> {
        Ok(self.next::<false>(unit)?.is_some())
    }

    /// Takes the next unit of whatever stream in place of what `unit` was, and returns its stream: for who passes units
    /// on. None if none waits.
    pub(super) fn take_any(&mut self, unit: &mut Unit) -> Result<Option<Stream>, TakeError> {
        self.next::<true>(unit)
    }

    #[inline]
    fn next<const ANY: bool>(&mut self, unit: &mut Unit) -> Result<Option<Stream>, TakeError> {
        loop {
            let available = self.cursor.available(&self.layout.header().tail)?;
            if available == 0 || self.early {
                // The caller is about to sleep: the producer must not, for want of what was given back so far.
                if self.unrung_bytes > 0 {
                    self.ring_producer();
                }
                self.cursor.check(&self.layout.header().head)?;
                return Ok(None);
            }
            let head = self.cursor.head();
            let Some((header, digest)) = self.copy_unit(head, available, &mut unit.payload)? else {
                let capacity = self.layout.config.ring_capacity;
                self.release(capacity - (head & (capacity - 1)));
                continue;
            };
            let total = u64::from(header.total);
            let stream = Stream::from_raw(header.epoch);
            match if ANY { Judgement::Take } else { self.receiving.judge(stream) } {
                Judgement::Take => {}
                Judgement::Drop => {
                    self.drop_unit()?;
                    self.release(total);
                    continue;
                }
                Judgement::Leave => {
                    self.early = true;
                    continue;
                }
            }
            if matches!(header.kind, KIND_FRAGMENT | KIND_FIRST_FRAGMENT) {
                self.take_fragment(header, &unit.payload)?;
                self.release(total);
                continue;
            }
            (unit.kind, unit.shard) = (header.kind, header.shard);
            unit.digest = if header.kind & OPAQUE == 0 { digest } else { 0 };
            unit.buffers.clear();
            if header.blocks > 0 || !self.streamed.is_empty() {
                self.take_buffers(&mut unit.buffers)?;
            }
            self.release(total);
            self.count_blocks(&unit.buffers);
            return Ok(Some(stream));
        }
    }

    /// Copies a unit out of the ring, its block table into `self.table` and its payload into `payload`, and checks all
    /// of it. None for a pad.
    #[inline]
    fn copy_unit(
        &mut self,
        head: u64,
        available: u64,
        payload: &mut Vec<u8>,
    ) -> Result<Option<(UnitHeader, u64)>, Corrupted> {
        let capacity = self.layout.config.ring_capacity;
        let until_wrap = capacity - (head & (capacity - 1));
        if !available.is_multiple_of(8) {
            return Err(Corrupted("a producer's cursor stands inside a unit"));
        }
        let place = self.layout.ring_ptr(head);
        // SAFETY: `available` bytes were published, at least 8 of them contiguous here (both are multiples of 8). Reads
        // are volatile: the peer is another process.
        let first = unsafe { place.cast::<u64>().read_volatile() };
        let First::Unit { total, check } = First::read(first, head, available, until_wrap)? else { return Ok(None) };
        // SAFETY: `First::read` has checked that a whole header is contiguous here.
        let words = unsafe { place.cast::<u64>().add(1).cast::<[u64; 2]>().read_volatile() };
        let header = UnitHeader::from_words(total, words)?;
        let mut sum = header.checksum(head);
        let mut digest = Digest::default();
        let before;
        let (blocks, len) = (usize::from(header.blocks), header.payload as usize);
        self.table.clear();
        payload.clear();
        payload.reserve(len.next_multiple_of(8));
        // SAFETY: table and payload lie inside the contiguous unit, as `from_words` has checked; `reserve` made room.
        // The copies are private, so what was checked and is decoded from them cannot change any more.
        unsafe {
            let entries = place.add(UNIT_HEADER as usize).cast::<[u64; 2]>();
            for index in 0..blocks {
                let [offset, len] = entries.add(index).read_volatile();
                sum = sum.words(offset, len);
                digest.buffer(len);
                self.table.push([offset, len]);
            }
            before = sum;
            sum = sum.copy::<true>(entries.add(blocks).cast::<u8>(), payload.as_mut_ptr(), len);
            payload.set_len(len);
        }
        if sum.finish() != check {
            return Err(Corrupted("a unit was overwritten"));
        }
        Ok(Some((header, digest.finish(sum.since(before), len))))
    }

    /// An entry of the block table, checked: (offset, length).
    fn block_entry(&self, index: usize) -> Result<(u64, u64), Corrupted> {
        let [offset, len] = self.table[index];
        let len = bare_len(len);
        let capacity = self.layout.config.arena_capacity;
        if offset != u64::MAX {
            if offset >= capacity || len > capacity - offset {
                return Err(Corrupted("a block lies outside the arena"));
            }
            if !offset.is_multiple_of(BLOCK_ALIGN) {
                return Err(Corrupted("a block does not start where blocks do"));
            }
        }
        Ok((offset, len))
    }

    fn drop_unit(&mut self) -> Result<(), Corrupted> {
        for index in 0..self.table.len() {
            let (offset, _) = self.block_entry(index)?;
            if offset != u64::MAX {
                self.returns.give_back(offset);
            }
        }
        Ok(())
    }

    fn take_fragment(&mut self, header: UnitHeader, bytes: &[u8]) -> Result<(), NoMemory> {
        if header.kind == KIND_FIRST_FRAGMENT {
            self.streamed.clear();
        }
        self.streamed.try_reserve(bytes.len()).map_err(|_| NoMemory(self.streamed.len() + bytes.len()))?;
        self.streamed.extend_from_slice(bytes);
        Ok(())
    }

    /// Makes the buffers of a unit from its block table and the fragments that came before it.
    fn take_buffers(&mut self, buffers: &mut Vec<Buffer>) -> Result<(), Corrupted> {
        let mut streamed = false;
        for index in 0..self.table.len() {
            let (offset, len) = self.block_entry(index)?;
            buffers.push(if offset == u64::MAX {
                streamed = true;
                Buffer::Owned(Arc::new(self.streamed_buffer(len)?))
            } else {
                Buffer::Leased(Arc::new(self.returns.lease(offset, len)))
            });
        }
        // Fragments belong to the unit behind them. If that has none, a producer gave up half-way and tells so by
        // it.
        if !std::mem::take(&mut self.streamed).is_empty() && streamed {
            return Err(Corrupted("a unit refers to other fragments than those that came"));
        }
        Ok(())
    }

    /// The first `len` bytes that came in fragments.
    fn streamed_buffer(&mut self, len: u64) -> Result<Vec<u8>, Corrupted> {
        let len = usize::try_from(len).ok().filter(|&len| len <= self.streamed.len());
        let len = len.ok_or(Corrupted("a unit refers to fragments that did not come"))?;
        if len == self.streamed.len() {
            return Ok(std::mem::take(&mut self.streamed));
        }
        let rest = self.streamed.split_off(len);
        Ok(std::mem::replace(&mut self.streamed, rest))
    }

    /// Wakes the producer if it sleeps: space, blocks or a command wait for it.
    pub fn ring(&self) {
        if self.peer.ring() {
            add(&self.flow.wakes, 1);
        }
    }
}
