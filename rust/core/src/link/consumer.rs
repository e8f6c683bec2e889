//! The consumer of a link is the end that receives messages.
//!
//! The consumer does not trust the producer, so the consumer verifies a private copy of each message.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::header::{BLOCK_ALIGN, Layout};
use super::lease::{Lease, Returns};
use super::message::{KIND_FIRST_FRAGMENT, KIND_FRAGMENT, MESSAGE_HEADER, MessageHeader, OPAQUE, bare_len, read_first};
use crate::error::{Corrupted, NoMemory, TakeError};
use crate::integrity::{Digest, open, seal};
use crate::process::board::BellRef;
use crate::protocol::{Ahead, Grant, Judgement, Receiving, Stream};
use crate::stats::{FlowRef, add};
use crate::sync::cursor::ConsumerCursor;

#[derive(Debug, Clone)]
pub enum Buffer {
    /// A block in shared memory. The producer cannot reuse the block until the lease is dropped.
    Leased(Arc<Lease>),
    Owned(Arc<Vec<u8>>),
}

impl Buffer {
    pub fn len(&self) -> usize {
        match self {
            Self::Owned(bytes) => bytes.len(),
            Self::Leased(lease) => lease.len(),
        }
    }

    /// Copies the buffer into private memory. If there is not enough memory for the copy, returns the unchanged buffer.
    pub fn into_owned(self) -> Self {
        match &self {
            Self::Owned(_) => self,
            Self::Leased(lease) => lease.private_copy().map_or(self, |copy| Self::Owned(Arc::new(copy))),
        }
    }
}

/// A received message. Callers reuse one `Message` object, so that receiving a message does not allocate memory.
#[derive(Debug, Default)]
pub struct Message {
    /// The type of the message, which the producer has chosen.
    pub kind: u16,
    /// The number of the shard that sent the message. Each producer numbers its own shards from 0.
    pub shard: u16,
    /// The bytes of the message that were stored directly in the ring, without large buffers.
    pub payload: Vec<u8>,
    pub buffers: Vec<Buffer>,
    /// A hash of the message, or 0 if the bytes of equal items may differ.
    pub digest: u64,
}

/// Only one thread at a time may use the consumer.
#[derive(Debug)]
pub struct Consumer {
    layout: Arc<Layout>,
    cursor: ConsumerCursor,
    returns: Arc<Returns>,
    peer: BellRef,
    table: Vec<[u64; 2]>,
    /// The received bytes of a buffer that was sent in fragments before its message.
    streamed: Vec<u8>,
    receiving: Receiving,
    /// The latest permission to send items (grant) that this consumer has given to the producer.
    announced: Grant,
    /// Whether the next message in the ring belongs to a stream that this consumer has not begun yet.
    early: bool,
    wanted: bool,
    taken: u64,
    unrung: u64,
    unrung_bytes: u64,
    unrung_blocks: u64,
    ahead: Ahead,
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
            announced: Receiving::default().grant(),
            early: false,
            wanted: true,
            taken: 0,
            unrung: 0,
            unrung_bytes: 0,
            unrung_blocks: 0,
            ahead: Ahead::default(),
        }
    }

    pub(super) fn peer(&self) -> &BellRef {
        &self.peer
    }

    pub(super) fn follow(&mut self, earlier: &Self) {
        self.count_into(earlier.flow.clone());
        self.begin(earlier.receiving.stream(), earlier.receiving.window());
    }

    pub fn count_into(&mut self, flow: FlowRef) {
        self.before = flow.items.load(Ordering::Relaxed).wrapping_sub(self.taken);
        self.flow = flow;
    }

    pub fn flow(&self) -> &FlowRef {
        &self.flow
    }

    /// Begins to receive a stream. The producer may be at most `window` items ahead of the consumer.
    pub fn begin(&mut self, stream: Stream, window: u64) {
        self.before = self.before.wrapping_add(self.taken);
        self.taken = 0;
        self.unrung = 0;
        self.early = false;
        self.streamed = Vec::new();
        let grant = self.receiving.begin(stream, window);
        self.flow.window.store(window, Ordering::Relaxed);
        self.announce(grant);
    }

    fn announce(&mut self, grant: Grant) {
        self.grant(grant);
        self.ring();
    }

    #[inline]
    fn grant(&mut self, grant: Grant) {
        self.announced = grant;
        // SYNC(grant): pairs with Producer::permit.
        self.layout.header().granted.store(grant.word(), Ordering::Release);
    }

    /// Turns the wake-ups for new items on or off. After turning wake-ups on, the caller must check for items that have
    /// already arrived.
    #[inline]
    pub fn want_items(&mut self, wanted: bool) {
        if wanted == self.wanted {
            return;
        }
        self.wanted = wanted;
        let word = &self.layout.header().items_wanted;
        if wanted { word.raise() } else { word.lower() }
    }

    /// Informs the producer that the consumer has finished reading the current stream.
    pub fn leave(&mut self) {
        self.announce(self.receiving.leave());
    }

    /// Informs the producer that no more items of the epoch `epoch` are needed.
    pub fn finish(&mut self, epoch: u32) {
        let grant = self.receiving.finish(epoch);
        self.announce(grant);
    }

    pub fn acknowledge(&self, count: u64) {
        // SYNC(acknowledge): pairs with Producer::acknowledged.
        self.layout.header().acknowledged.store(seal(count), Ordering::Release);
        self.peer.ring();
    }

    /// Returns whether the process that sends over this link is waiting for items of the dispatching process.
    pub fn starves(&self) -> bool {
        // SYNC(starve): pairs with Link::starve. A damaged word means false.
        let epoch = open(self.layout.header().starving.load(Ordering::Acquire));
        epoch == Some(u64::from(self.receiving.stream().epoch()))
    }

    pub fn taken(&self) -> u64 {
        self.taken
    }

    pub fn set_window(&mut self, window: u64) {
        let grant = self.receiving.set_window(window);
        self.announce(grant);
    }

    #[inline]
    fn count(&mut self) {
        self.taken += 1;
        self.flow.items.store(self.before.wrapping_add(self.taken), Ordering::Relaxed);
    }

    /// To save system calls, a sleeping producer is woken up only after half a window of items was taken, or if the
    /// ring is empty.
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

    /// Counts an item that was received before its turn, and permits the producer to send one more item.
    pub fn item_taken_in(&mut self) {
        self.count();
        self.receiving.take();
        self.announce(self.receiving.one_more());
    }

    /// Permits the producer to send one more item even if the window is 0, because another process waits for this item.
    pub fn grant_one_more(&mut self) {
        self.report_if_new(self.receiving.one_more());
    }

    pub fn restore_grant(&mut self) {
        self.report_if_new(self.receiving.grant());
    }

    fn report_if_new(&mut self, grant: Grant) {
        if self.announced != grant {
            self.announce(grant);
        }
    }

    /// Records that this process waits for an item, and adapts the limit of unread bytes that the producer may send.
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

    fn release(&mut self, total: u64) {
        self.cursor.release(&self.layout.header().head, total);
        self.unrung_bytes += total;
        if self.unrung_bytes * 2 >= self.layout.config.ring_capacity {
            self.ring_producer();
        }
    }

    /// Wakes up the producer after each `Ahead::LEAST / 2` bytes of buffers, because the producer may wait for
    /// permission to send more bytes.
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

    #[inline]
    pub fn readable(&mut self) -> Result<bool, Corrupted> {
        Ok(!self.early && self.cursor.available(&self.layout.header().tail)? > 0)
    }

    pub fn leased(&self) -> u64 {
        self.returns.bytes()
    }

    /// Returns whether a received buffer of `len` bytes must be copied, so that leases use at most half of the arena
    /// and half of the blocks.
    pub fn should_copy(&self, len: usize) -> bool {
        let config = self.layout.config;
        let leases = self.returns.count();
        (self.leased() + len as u64) * 2 > config.arena_capacity || (leases + 1) * 2 > config.return_capacity
    }

    /// Takes the next message of the current stream, or returns false if no message has arrived.
    ///
    /// Messages of earlier streams are dropped, and messages of later streams stay in the ring.
    pub fn take(&mut self, message: &mut Message) -> Result<bool, TakeError> {
        Ok(self.next::<false>(message)?.is_some())
    }

    #[inline]
    pub(super) fn next<const ANY: bool>(&mut self, message: &mut Message) -> Result<Option<Stream>, TakeError> {
        loop {
            let available = self.cursor.available(&self.layout.header().tail)?;
            if available == 0 || self.early {
                // The caller may sleep next, so a producer that waits for space in the ring must be woken up now.
                if self.unrung_bytes > 0 {
                    self.ring_producer();
                }
                self.cursor.check(&self.layout.header().head)?;
                return Ok(None);
            }
            let head = self.cursor.head();
            let Some((header, digest)) = self.copy_message(head, available, &mut message.payload)? else {
                let capacity = self.layout.config.ring_capacity;
                self.release(capacity - (head & (capacity - 1)));
                continue;
            };
            let total = u64::from(header.total);
            let stream = Stream::from_raw(header.epoch);
            match if ANY { Judgement::Take } else { self.receiving.judge(stream) } {
                Judgement::Take => {}
                Judgement::Drop => {
                    self.drop_message()?;
                    self.release(total);
                    continue;
                }
                Judgement::Leave => {
                    self.early = true;
                    continue;
                }
            }
            if matches!(header.kind, KIND_FRAGMENT | KIND_FIRST_FRAGMENT) {
                self.take_fragment(header, &message.payload)?;
                self.release(total);
                continue;
            }
            (message.kind, message.shard) = (header.kind, header.shard);
            message.digest = if header.kind & OPAQUE == 0 { digest } else { 0 };
            message.buffers.clear();
            if header.blocks > 0 || !self.streamed.is_empty() {
                self.take_buffers(&mut message.buffers)?;
            }
            self.release(total);
            self.count_blocks(&message.buffers);
            return Ok(Some(stream));
        }
    }

    /// Copies the message at ring position `head` into private memory. Returns None if the position contains padding.
    #[inline]
    fn copy_message(
        &mut self,
        head: u64,
        available: u64,
        payload: &mut Vec<u8>,
    ) -> Result<Option<(MessageHeader, u64)>, Corrupted> {
        let capacity = self.layout.config.ring_capacity;
        let until_wrap = capacity - (head & (capacity - 1));
        if !available.is_multiple_of(8) {
            return Err(Corrupted("a producer's cursor points into a message"));
        }
        let pointer = self.layout.ring_ptr(head);
        // SAFETY: the producer has published `available` bytes from `pointer` on. At least 8 of these bytes are
        // contiguous, because the ring's capacity and all positions are multiples of 8. The read is volatile, because
        // another process writes to the ring.
        let first = unsafe { pointer.cast::<u64>().read_volatile() };
        let Some((total, check)) = read_first(first, head, available, until_wrap)? else { return Ok(None) };
        // SAFETY: `read_first` has checked that the whole message, including its header, is published and contiguous.
        let words = unsafe { pointer.cast::<u64>().add(1).cast::<[u64; 2]>().read_volatile() };
        let header = MessageHeader::from_words(total, words)?;
        let mut sum = header.checksum(head);
        let mut digest = Digest::default();
        let before;
        let (blocks, len) = (usize::from(header.blocks), header.payload as usize);
        self.table.clear();
        payload.clear();
        payload.reserve(len.next_multiple_of(8));
        // SAFETY: `from_words` has checked that the block table and the payload are inside the message, and `reserve`
        // has made room for the copy. The checks below read the private copy, because the producer can still change the
        // message in the ring.
        unsafe {
            let entries = pointer.add(MESSAGE_HEADER as usize).cast::<[u64; 2]>();
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
            return Err(Corrupted("a message was overwritten"));
        }
        Ok(Some((header, digest.finish(sum.since(before), len))))
    }

    fn block_entry(&self, index: usize) -> Result<(u64, u64), Corrupted> {
        let [offset, len] = self.table[index];
        let len = bare_len(len);
        let capacity = self.layout.config.arena_capacity;
        if offset != u64::MAX {
            if offset >= capacity || len > capacity - offset {
                return Err(Corrupted("a block is outside the arena"));
            }
            if !offset.is_multiple_of(BLOCK_ALIGN) {
                return Err(Corrupted("a block is not aligned to a page"));
            }
        }
        Ok((offset, len))
    }

    fn drop_message(&mut self) -> Result<(), Corrupted> {
        for index in 0..self.table.len() {
            let (offset, _) = self.block_entry(index)?;
            if offset != u64::MAX {
                self.returns.give_back(offset);
            }
        }
        Ok(())
    }

    fn take_fragment(&mut self, header: MessageHeader, bytes: &[u8]) -> Result<(), NoMemory> {
        if header.kind == KIND_FIRST_FRAGMENT {
            self.streamed.clear();
        }
        self.streamed.try_reserve(bytes.len()).map_err(|_| NoMemory(self.streamed.len() + bytes.len()))?;
        self.streamed.extend_from_slice(bytes);
        Ok(())
    }

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
        // If a received message does not use the fragments before it, these fragments belong to a message that the
        // producer has abandoned.
        if !std::mem::take(&mut self.streamed).is_empty() && streamed {
            return Err(Corrupted("a message refers to fragments that differ from those received"));
        }
        Ok(())
    }

    fn streamed_buffer(&mut self, len: u64) -> Result<Vec<u8>, Corrupted> {
        let len = usize::try_from(len).ok().filter(|&len| len <= self.streamed.len());
        let len = len.ok_or(Corrupted("a message refers to fragments that were not received"))?;
        if len == self.streamed.len() {
            return Ok(std::mem::take(&mut self.streamed));
        }
        let rest = self.streamed.split_off(len);
        Ok(std::mem::replace(&mut self.streamed, rest))
    }

    pub fn ring(&self) {
        if self.peer.ring() {
            add(&self.flow.wakes, 1);
        }
    }
}
