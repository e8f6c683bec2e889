//! The producer of a link is the end that sends messages.
//!
//! A single store publishes a message, so the consumer never reads an incomplete message, even if the producer is
//! killed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::arena::{Arena, Block};
use super::header::Layout;
use super::message::{KIND_FIRST_FRAGMENT, KIND_FRAGMENT, MessageHeader, OPAQUE, padding, sampled_len};
use super::wake::WakePolicy;
use crate::error::Corrupted;
use crate::integrity::{Digest, open, seal};
use crate::process::board::BellRef;
use crate::protocol::{Account, Ahead, Permit, Reader, Sending, Stream};
use crate::sampled_clock::SampledClock;
use crate::stats::{FlowRef, add};
use crate::sync::cursor::ProducerCursor;

const WAKE_BATCH: u32 = 64;

/// The minimum and the maximum number of items that the producer sends before it frees unused memory (`tidy`).
const TIDY_EACH: (u32, u32) = (8, 256);
const TIDY_NEAR: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub enum Part {
    /// The buffer is in a block of this link's arena.
    Block(Arc<Block>),
    /// The buffer was sent in fragments before the message. The value is the buffer's length with check bits, as
    /// returned by [`sampled_len`].
    Streamed(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    Done,
    /// The ring is full. The caller must try again after [`Producer::writable`] returns true.
    Full,
}

#[derive(Debug, Clone, Copy, Default)]
struct ShardProgress {
    account: Account,
    outstanding: u64,
}

/// Only one thread at a time may use the producer.
#[derive(Debug)]
pub struct Producer {
    layout: Arc<Layout>,
    arena: Arc<Arena>,
    peer: BellRef,
    cursor: ProducerCursor,
    wake: WakePolicy,
    last_blocks: u64,
    ahead: VecDeque<(u64, u64)>,
    ahead_bytes: u64,
    sending: Sending,
    account: Account,
    current: u16,
    /// For each shard, the number of sent items and the number of items to recompute. The entry of the current shard is
    /// outdated, because the fields `sending` and `account` contain this shard's latest numbers.
    shards: Vec<ShardProgress>,
    /// Scratch memory for the checksum of a recomputed payload, which is computed while copying the payload. The copy
    /// itself is not used.
    copy: Vec<u8>,
    streaming: bool,
    clock: SampledClock,
    items: u64,
    bytes: u64,
    flow: FlowRef,
}

impl Producer {
    pub(crate) fn new(layout: Arc<Layout>, peer: BellRef) -> Self {
        let arena = Arena::new(Arc::clone(&layout));
        Self {
            cursor: ProducerCursor::new(layout.config.ring_capacity),
            wake: WakePolicy::new(WAKE_BATCH),
            last_blocks: 0,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            sending: Sending::default(),
            account: Account::default(),
            current: 0,
            shards: vec![ShardProgress::default()],
            copy: Vec::new(),
            streaming: false,
            clock: SampledClock::new(TIDY_EACH.0, TIDY_EACH.1, TIDY_NEAR),
            items: 0,
            bytes: 0,
            flow: layout.flow(true),
            layout,
            arena,
            peer,
        }
    }

    pub fn count_into(&mut self, flow: FlowRef) {
        self.items = flow.items.load(Ordering::Relaxed);
        self.bytes = flow.bytes.load(Ordering::Relaxed);
        flow.arena_capacity.store(self.layout.config.arena_capacity, Ordering::Relaxed);
        self.arena.count_into(flow.clone());
        self.flow = flow;
    }

    pub fn flow(&self) -> &FlowRef {
        &self.flow
    }

    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the maximum number of bytes that a message may store directly in the ring.
    pub fn max_inline(&self) -> usize {
        (self.layout.config.ring_capacity / 4) as usize
    }

    pub fn divide(&mut self, shards: u16) {
        self.shards = vec![ShardProgress::default(); usize::from(shards)];
        self.current = 0;
    }

    /// Makes `shard` the shard of all following messages.
    #[inline]
    pub fn turn_to(&mut self, shard: u16) {
        if shard != self.current {
            self.shards[usize::from(self.current)] = self.current_shard();
            let ShardProgress { account, outstanding } = self.shards[usize::from(shard)];
            (self.current, self.account) = (shard, account);
            self.sending.repeat(outstanding);
        }
    }

    pub fn begin(&mut self, stream: Stream) {
        self.sending.begin(stream);
        self.account = Account::default();
        self.shards.fill(ShardProgress::default());
        (self.ahead_bytes, self.ahead) = (0, VecDeque::new());
        self.give_up();
        // If a wait for blocks was interrupted, the flag `blocks_wanted` may still be set, and must be cleared.
        self.layout.header().blocks_wanted.lower();
    }

    /// Resumes the current shard after its first `account.items` items. The next `again` items are recomputed, but not
    /// sent.
    pub fn resume_from(&mut self, account: Account, again: u64) {
        self.account = account;
        self.sending.repeat(again);
    }

    /// Returns the number and the checksum of all items of the current shard, including items that an earlier run has
    /// sent.
    pub fn account(&self) -> Account {
        self.account
    }

    pub fn accounts(&self) -> impl ExactSizeIterator<Item = Account> + '_ {
        self.all_shards().map(|shard| shard.account)
    }

    /// Returns the first shard, if any, that must still recompute items.
    pub fn recomputing(&self) -> Option<u16> {
        self.all_shards().position(|shard| shard.outstanding > 0).map(|shard| shard as u16)
    }

    fn current_shard(&self) -> ShardProgress {
        ShardProgress { account: self.account, outstanding: self.sending.outstanding() }
    }

    fn all_shards(&self) -> impl ExactSizeIterator<Item = ShardProgress> + '_ {
        let current = usize::from(self.current);
        self.shards
            .iter()
            .enumerate()
            .map(move |(shard, &kept)| if shard == current { self.current_shard() } else { kept })
    }

    /// Returns how many items the current shard must still recompute. Recomputed items are not sent, because an earlier
    /// process has already sent the same items.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.sending.outstanding()
    }

    /// Counts an item that was recomputed and is not sent.
    pub fn recomputed(&mut self, kind: u16, table: &[u64], payload: &[u8]) {
        self.copy.resize(payload.len().next_multiple_of(8), 0);
        let mut before = self.header(kind, table.len(), payload.len()).checksum(0);
        let mut digest = Digest::default();
        for &len in table {
            before = before.words(0, len);
            digest.buffer(len);
        }
        // SAFETY: `copy` has room for the payload, rounded up to a multiple of 8 bytes.
        let after = unsafe { before.copy::<false>(payload.as_ptr(), self.copy.as_mut_ptr(), payload.len()) };
        self.count(kind, digest.finish(after.since(before), payload.len()));
        self.sending.recomputed();
    }

    /// Counts an item that is not sent because the consumer does not want the item.
    pub fn skip(&mut self) {
        self.account.count(0);
    }

    #[inline]
    fn count(&mut self, kind: u16, digest: u64) {
        self.account.count(if kind & OPAQUE == 0 { digest } else { 0 });
    }

    fn header(&self, kind: u16, blocks: usize, payload: usize) -> MessageHeader {
        MessageHeader::new(self.current, kind, self.sending.stream().raw(), blocks, payload)
            .filter(|message| u64::from(message.total) <= self.layout.config.ring_capacity / 2)
            .expect("callers check `fits` first")
    }

    pub fn give_up(&mut self) {
        self.streaming = false;
    }

    pub fn stream(&self) -> Stream {
        self.sending.stream()
    }

    /// Returns whether the consumer permits the producer to send another item now.
    #[inline]
    pub fn permit(&mut self) -> Result<Permit, Corrupted> {
        if self.ahead_bytes < Ahead::LEAST && self.sending.has_credit() {
            return Ok(Permit::Now);
        }
        self.permit_by_word()
    }

    fn permit_by_word(&mut self) -> Result<Permit, Corrupted> {
        let far_ahead = self.ahead_bytes >= Ahead::LEAST && self.is_far_ahead()?;
        if !far_ahead && self.sending.has_credit() {
            return Ok(Permit::Now);
        }
        // SYNC(grant): pairs with Consumer::grant.
        let word = self.layout.header().granted.load(Ordering::Acquire);
        let permit = if far_ahead { self.sending.permit_far_ahead(word) } else { self.sending.permit(word) };
        permit.ok_or(Corrupted("the grant of a consumer cannot be read"))
    }

    /// Adds the size of an item to the queue `ahead`, where successive small items share one entry.
    #[inline]
    fn note_ahead(&mut self, bytes: u64) {
        self.ahead_bytes += bytes;
        let tail = self.cursor.tail();
        match self.ahead.back_mut() {
            Some((end, noted)) if *noted + bytes <= Ahead::LEAST / 64 => (*end, *noted) = (tail, *noted + bytes),
            _ => self.ahead.push_back((tail, bytes)),
        }
    }

    #[cold]
    fn is_far_ahead(&mut self) -> Result<bool, Corrupted> {
        let header = self.layout.header();
        let allowed = open(header.ahead.load(Ordering::Relaxed));
        let allowed = allowed.ok_or(Corrupted("the read-ahead limit of a producer cannot be read"))?;
        let head = self.cursor.refresh(&header.head)?;
        while let Some(&(end, bytes)) = self.ahead.front()
            && end <= head
        {
            self.ahead.pop_front();
            self.ahead_bytes -= bytes;
        }
        Ok(self.ahead_bytes >= allowed)
    }

    /// Returns whether the consumer still wants items of the producer's current stream.
    pub fn reader(&self) -> Result<Reader, Corrupted> {
        // SYNC(grant): pairs with Consumer::grant.
        let word = self.layout.header().granted.load(Ordering::Acquire);
        self.sending.reader(word).ok_or(Corrupted("the grant of a consumer cannot be read"))
    }

    pub fn order(&self, order: u64) {
        // SYNC(order): pairs with Link::is_superseded.
        self.layout.header().order.store(seal(order), Ordering::Release);
    }

    pub fn acknowledged(&self) -> Result<u64, Corrupted> {
        // SYNC(acknowledge): pairs with Consumer::acknowledge.
        let word = self.layout.header().acknowledged.load(Ordering::Acquire);
        open(word).ok_or(Corrupted("the number of acknowledged messages cannot be read"))
    }

    pub fn allocate(&mut self, len: usize) -> Result<Option<Block>, Corrupted> {
        self.arena.reclaim()?;
        Ok(self.arena.allocate(len))
    }

    /// Returns whether the ring contains a message with blocks that the consumer has not read yet.
    pub fn blocks_in_flight(&mut self) -> Result<bool, Corrupted> {
        let head = self.cursor.refresh(&self.layout.header().head)?;
        Ok(self.last_blocks > head)
    }

    /// Returns whether a message with `blocks` buffers and `payload` inline bytes fits into an empty ring.
    pub fn fits(&self, blocks: usize, payload: usize) -> bool {
        MessageHeader::new(0, 0, 0, blocks, payload)
            .is_some_and(|message| u64::from(message.total) <= self.layout.config.ring_capacity / 2)
    }

    /// Returns whether the caller should repeat a failed allocation now, instead of sleeping until the consumer returns
    /// a block.
    pub fn worth_allocating(&mut self) -> Result<bool, Corrupted> {
        self.layout.header().blocks_wanted.raise();
        let worth = self.arena.reclaimable()? || !self.blocks_in_flight()?;
        if worth {
            self.layout.header().blocks_wanted.lower();
        }
        Ok(worth)
    }

    /// Returns whether the ring currently has room for a message with `blocks` buffers and `payload` inline bytes.
    pub fn writable(&mut self, blocks: usize, payload: usize) -> Result<bool, Corrupted> {
        let Some(header) = MessageHeader::new(0, 0, 0, blocks, payload) else { return Ok(false) };
        self.cursor.has_room(&self.layout.header().head, self.needed(u64::from(header.total)))
    }

    fn needed(&self, total: u64) -> u64 {
        let capacity = self.layout.config.ring_capacity;
        let until_wrap = capacity - (self.cursor.tail() & (capacity - 1));
        if total <= until_wrap { total } else { until_wrap + total }
    }

    /// Pushes an item. To save system calls, the consumer may be woken up only after several items.
    ///
    /// # Panics
    /// If the message never fits (see [`Producer::fits`]), or a block belongs to another arena.
    pub fn push_item(&mut self, kind: u16, parts: &[Part], payload: &[u8]) -> Result<Push, Corrupted> {
        // A producer that always has items never waits, so memory is freed here and not only during waits.
        if self.arena.is_untidy()
            && let Some(now) = self.clock.sample()
        {
            self.arena.tidy(now)?;
        }
        let (pushed, digest) = self.write(kind, parts, payload)?;
        if pushed == Push::Done {
            self.count(kind, digest);
            self.streaming = false;
            self.sending.sent();
            let in_blocks: u64 =
                parts.iter().map(|part| if let Part::Block(block) = part { block.len() as u64 } else { 0 }).sum();
            if in_blocks > 0 {
                self.note_ahead(in_blocks);
            }
            self.count_item();
            let flow = &*self.flow;
            if self.wake.published(&self.peer, &self.layout.header().items_wanted) {
                add(&flow.wakes, 1);
            }
        }
        Ok(pushed)
    }

    pub fn count_item(&mut self) {
        self.items += 1;
        self.flow.items.store(self.items, Ordering::Relaxed);
        self.flow.bytes.store(self.bytes, Ordering::Relaxed);
    }

    /// Pushes a message that is not an item, and wakes up the consumer immediately.
    pub fn push(&mut self, kind: u16, parts: &[Part], payload: &[u8]) -> Result<Push, Corrupted> {
        let pushed = self.push_soon(kind, parts, payload)?;
        self.ring();
        Ok(pushed)
    }

    /// Pushes a message that is not an item, and lets `WakePolicy` decide when to wake up the consumer.
    pub fn push_soon(&mut self, kind: u16, parts: &[Part], payload: &[u8]) -> Result<Push, Corrupted> {
        let (pushed, _) = self.write(kind, parts, payload)?;
        self.streaming &= pushed == Push::Full;
        if pushed == Push::Full {
            self.ring();
        } else if self.wake.published(&self.peer, &self.layout.header().items_wanted) {
            add(&self.flow.wakes, 1);
        }
        Ok(pushed)
    }

    /// Pushes a message without waking up the consumer. Returns false if the ring is full, or if fragments of another
    /// message were already sent.
    pub fn push_aside(&mut self, kind: u16, parts: &[Part], payload: &[u8]) -> Result<bool, Corrupted> {
        if !self.fits(parts.len(), payload.len()) || self.streaming {
            return Ok(false);
        }
        Ok(self.write(kind, parts, payload)?.0 == Push::Done)
    }

    /// Pushes a fragment of a buffer that is larger than the arena. Fragments must be pushed before the message.
    pub fn push_fragment(&mut self, bytes: &[u8]) -> Result<Push, Corrupted> {
        let kind = if self.streaming { KIND_FRAGMENT } else { KIND_FIRST_FRAGMENT };
        let (pushed, _) = self.write(kind, &[], bytes)?;
        self.streaming |= pushed == Push::Done;
        add(&self.flow.fragments, u64::from(pushed == Push::Done));
        self.ring();
        Ok(pushed)
    }

    /// Wakes up the consumer if it waits for items. The producer must call this method before it waits, because a
    /// wake-up of the consumer may be pending.
    pub fn flush(&mut self) {
        if self.wake.flush(&self.peer, &self.layout.header().items_wanted) {
            add(&self.flow.wakes, 1);
        }
    }

    fn ring(&mut self) {
        if self.wake.ring(&self.peer) {
            add(&self.flow.wakes, 1);
        }
    }

    #[inline]
    fn write(&mut self, kind: u16, parts: &[Part], payload: &[u8]) -> Result<(Push, u64), Corrupted> {
        let message = self.header(kind, parts.len(), payload.len());
        for part in parts {
            if let Part::Block(block) = part {
                assert!(block.is_of(&self.arena), "a block of another link's arena cannot be sent over this one");
            }
        }
        let total = u64::from(message.total);
        let needed = self.needed(total);
        if !self.cursor.has_room(&self.layout.header().head, needed)? {
            return Ok((Push::Full, 0));
        }
        if needed > total {
            let pad = padding(self.cursor.tail(), needed - total);
            // SAFETY: at least 8 free, contiguous bytes follow the tail, because the tail and the ring's end are
            // multiples of 8.
            unsafe { self.layout.ring_ptr(self.cursor.tail()).cast::<u64>().write(pad) };
        }
        let start = self.cursor.tail() + (needed - total);
        let mut check = message.checksum(start);
        let mut digest = Digest::default();
        let before;
        let pointer = self.layout.ring_ptr(start);
        // SAFETY: the cursor has checked that `needed` bytes after the tail are free, and the `total` bytes at
        // `pointer` are contiguous. Only the producer writes to free bytes of the ring. Messages start at multiples of
        // 8 bytes.
        unsafe {
            let mut entry = pointer.cast::<[u64; 3]>().add(1).cast::<[u64; 2]>();
            for part in parts {
                let [offset, len] = match part {
                    Part::Block(block) => [block.offset(), sampled_len(block.as_mut_ptr(), block.len())],
                    Part::Streamed(len) => [u64::MAX, *len],
                };
                entry.write([offset, len]);
                check = check.words(offset, len);
                digest.buffer(len);
                entry = entry.add(1);
            }
            before = check;
            check = check.copy::<false>(payload.as_ptr(), entry.cast::<u8>(), payload.len());
            pointer.cast::<[u64; 3]>().write(message.words(check.finish()));
        }
        self.bytes += payload.len() as u64;
        for part in parts {
            if let Part::Block(block) = part {
                self.bytes += block.len() as u64;
                self.arena.send(block.offset());
                self.last_blocks = start + total;
            }
        }
        self.cursor.publish(&self.layout.header().tail, needed);
        Ok((Push::Done, digest.finish(check.since(before), payload.len())))
    }
}
