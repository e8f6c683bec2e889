//! The producer's end of a link.
//!
//! Runs in the process whose pipe yields the items. A unit becomes visible by one store; a producer that is killed
//! before it exposes nothing, and what it had allocated is nobody's concern any more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::arena::{Arena, Block};
use super::cursor::ProducerCursor;
use super::header::Layout;
use super::unit::{First, KIND_FIRST_FRAGMENT, KIND_FRAGMENT, OPAQUE, UnitHeader, sampled_len};
use super::wake::WakePolicy;
use crate::error::Corrupted;
use crate::integrity::{Digest, open, seal};
use crate::process::board::BellRef;
use crate::protocol::{Account, Ahead, Permit, Reader, Sending, Stream};
use crate::sampled_clock::SampledClock;
use crate::stats::{FlowRef, add};

/// Items that are worth waking a sleeping consumer for.
const WAKE_BATCH: u32 = 64;

/// Fewest and most items after which the arena is looked at, if it holds anything that could go back: looks that
/// follow each other within less than `TIDY_NEAR` become fewer.
const TIDY_EACH: (u32, u32) = (8, 256);
const TIDY_NEAR: Duration = Duration::from_millis(1);

/// One buffer of a unit: where its bytes are.
#[derive(Debug)]
pub enum Part {
    /// In a block of this link's arena.
    Block(Arc<Block>),
    /// Sent ahead in fragments; the length in bytes, as [`sampled_len`] gives it.
    Streamed(u64),
}

impl Part {
    fn bytes_in_block(&self) -> u64 {
        match self {
            Self::Block(block) => block.len() as u64,
            Self::Streamed(_) => 0,
        }
    }
}

/// Whether a step could be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    /// Done.
    Done,
    /// The ring is full: wait until [`Producer::writable`] says otherwise.
    Full,
}

/// The items of one shard, which are accounted for by themselves.
#[derive(Debug, Clone, Copy, Default)]
struct Strand {
    account: Account,
    owed: u64,
}

/// The producer's end.
#[derive(Debug)]
pub struct Producer {
    layout: Arc<Layout>,
    arena: Arc<Arena>,
    peer: BellRef,
    cursor: ProducerCursor,
    wake: WakePolicy,
    /// Ring position behind the last unit with blocks.
    last_blocks: u64,
    /// Runs of items of this stream with blocks that the consumer had not taken when this was last looked at: their ends
    /// in the ring, and the bytes of their blocks.
    ahead: VecDeque<(u64, u64)>,
    /// The sum of these bytes.
    ahead_bytes: u64,
    sending: Sending,
    /// Items that went out in the current shard in this epoch, or pass, by earlier runs of it, too.
    account: Account,
    /// The shard that units are of.
    current: u16,
    /// By shard: its account, and the items to make again. Those of the current one are in `account` and `sending`.
    shards: Vec<Strand>,
    /// Whether fragments were pushed that belong to the next unit.
    streaming: bool,
    /// When the arena is looked at next.
    clock: SampledClock,
    /// Totals.
    items: u64,
    bytes: u64,
    /// Where they and other statistics are mirrored.
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
            shards: vec![Strand::default()],
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

    /// Counts there from now on, and goes on from what is there.
    pub fn count_into(&mut self, flow: FlowRef) {
        self.items = flow.items.load(Ordering::Relaxed);
        self.bytes = flow.bytes.load(Ordering::Relaxed);
        flow.arena_capacity.store(self.layout.config.arena_capacity, Ordering::Relaxed);
        self.arena.count_into(flow.clone());
        self.flow = flow;
    }

    /// Where this end counts.
    pub fn flow(&self) -> &FlowRef {
        &self.flow
    }

    /// The arena from which blocks for this link are taken.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Longest inline payload; longer ones go into a block or in fragments.
    pub fn max_inline(&self) -> usize {
        (self.layout.config.ring_capacity / 4) as usize
    }

    /// Sends units of so many shards from now on. One of them is current: units are of it.
    pub fn divide(&mut self, shards: u16) {
        self.shards = vec![Strand::default(); usize::from(shards)];
        self.current = 0;
    }

    /// Makes a shard the current one.
    ///
    /// # Panics
    /// There is no such shard.
    #[inline]
    pub fn turn_to(&mut self, shard: u16) {
        if shard != self.current {
            self.shards[usize::from(self.current)] = self.in_hand();
            let Strand { account, owed } = self.shards[usize::from(shard)];
            (self.current, self.account) = (shard, account);
            self.sending.repeat(owed);
        }
    }

    /// Begins a stream: units carry it, and its items are counted from zero.
    pub fn begin(&mut self, stream: Stream) {
        self.sending.begin(stream);
        self.account = Account::default();
        self.shards.fill(Strand::default());
        (self.ahead_bytes, self.ahead) = (0, VecDeque::new()); // what is left of an earlier stream holds nothing up
        self.give_up();
        // If a command interrupted the wait for blocks.
        self.layout.header().blocks_wanted.lower();
    }

    /// Goes on inside a shard, after what `account` says; the first `again` items are made again.
    pub fn go_on_from(&mut self, account: Account, again: u64) {
        self.account = account;
        self.sending.repeat(again);
    }

    /// Returns the account of items that went out in the current shard, by earlier runs of the stream, too.
    pub fn account(&self) -> Account {
        self.account
    }

    /// The accounts of all shards.
    pub fn accounts(&self) -> impl ExactSizeIterator<Item = Account> + '_ {
        self.all_shards().map(|shard| shard.account)
    }

    /// The first shard of which items are still to be made again.
    pub fn owing(&self) -> Option<u16> {
        self.all_shards().position(|shard| shard.owed > 0).map(|shard| shard as u16)
    }

    fn in_hand(&self) -> Strand {
        Strand { account: self.account, owed: self.sending.owed() }
    }

    fn all_shards(&self) -> impl ExactSizeIterator<Item = Strand> + '_ {
        let current = usize::from(self.current);
        self.shards.iter().enumerate().map(move |(shard, &kept)| if shard == current { self.in_hand() } else { kept })
    }

    /// Items of the current shard that are still to be made again.
    #[inline]
    pub fn owed(&self) -> u64 {
        self.sending.owed()
    }

    /// Counts an item that was made again, of which `table` has the lengths of the buffers as [`sampled_len`] gives
    /// them.
    pub fn made_again(&mut self, kind: u16, table: &[u64], payload: &[u8]) {
        let mut copy = vec![0; payload.len().next_multiple_of(8)];
        let mut before = self.header(kind, table.len(), payload.len()).checksum(0);
        let mut digest = Digest::default();
        for &len in table {
            before = before.words(0, len);
            digest.buffer(len);
        }
        // SAFETY: the copy has room for the payload, padded.
        let after = unsafe { before.copy::<false>(payload.as_ptr(), copy.as_mut_ptr(), payload.len()) };
        self.count(kind, digest.finish(after.since(before), payload.len()));
        self.sending.made_again();
    }

    /// Counts an item that went nowhere, as nobody wants it.
    pub fn skip(&mut self) {
        self.account.count(0);
    }

    #[inline]
    fn count(&mut self, kind: u16, digest: u64) {
        self.account.count(if kind & OPAQUE == 0 { digest } else { 0 });
    }

    fn header(&self, kind: u16, blocks: usize, payload: usize) -> UnitHeader {
        UnitHeader::new(self.current, kind, self.sending.stream().raw(), blocks, payload)
            .filter(|unit| u64::from(unit.total) <= self.layout.config.ring_capacity / 2)
            .expect("callers keep to what `fits` allows")
    }

    /// Gives up the unit of which fragments were pushed, if there is one: those to come belong to another.
    pub fn give_up(&mut self) {
        self.streaming = false;
    }

    /// The stream that units carry.
    pub fn stream(&self) -> Stream {
        self.sending.stream()
    }

    /// Whether the consumer wants one more item of this stream.
    #[inline]
    pub fn permit(&mut self) -> Result<Permit, Corrupted> {
        if self.ahead_bytes < Ahead::LEAST && self.sending.has_credit() {
            return Ok(Permit::Now);
        }
        self.permit_by_word()
    }

    /// The same by the consumer's word, which is not read for each item.
    fn permit_by_word(&mut self) -> Result<Permit, Corrupted> {
        let far_ahead = self.ahead_bytes >= Ahead::LEAST && self.is_far_ahead()?;
        if !far_ahead && self.sending.has_credit() {
            return Ok(Permit::Now);
        }
        // SYNC(grant): pairs with Consumer::grant; nothing but the word itself is read through it.
        let word = self.layout.header().granted.load(Ordering::Acquire);
        let permit = if far_ahead { self.sending.permit_far_ahead(word) } else { self.sending.permit(word) };
        permit.ok_or(Corrupted("what a consumer wants cannot be read"))
    }

    /// Notes that so many bytes of blocks are on their way. Items of few bytes are noted as one, which is taken when its
    /// last item is: nothing grows with their number.
    #[inline]
    fn note_ahead(&mut self, bytes: u64) {
        self.ahead_bytes += bytes;
        let tail = self.cursor.tail();
        match self.ahead.back_mut() {
            Some((end, noted)) if *noted + bytes <= Ahead::LEAST / 64 => (*end, *noted) = (tail, *noted + bytes),
            _ => self.ahead.push_back((tail, bytes)),
        }
    }

    /// Whether as many bytes of blocks are on their way as the consumer allows.
    #[cold]
    fn is_far_ahead(&mut self) -> Result<bool, Corrupted> {
        let header = self.layout.header();
        let allowed = open(header.ahead.load(Ordering::Relaxed));
        let allowed = allowed.ok_or(Corrupted("how far a producer may be ahead cannot be read"))?;
        let head = self.cursor.refresh(&header.head)?;
        while let Some(&(end, bytes)) = self.ahead.front()
            && end <= head
        {
            self.ahead.pop_front();
            self.ahead_bytes -= bytes;
        }
        Ok(self.ahead_bytes >= allowed)
    }

    /// Where the consumer is.
    pub fn reader(&self) -> Result<Reader, Corrupted> {
        // SYNC(grant): pairs with Consumer::grant.
        let word = self.layout.header().granted.load(Ordering::Acquire);
        self.sending.reader(word).ok_or(Corrupted("what a consumer wants cannot be read"))
    }

    /// Orders an epoch or the end, ahead of the command (see `protocol::Command::order`): for producers of control
    /// links.
    pub fn order(&self, order: u64) {
        // SYNC(order): pairs with Probe::is_superseded.
        self.layout.header().order.store(seal(order), Ordering::Release);
    }

    /// How many messages the consumer has dealt with.
    pub fn acknowledged(&self) -> Result<u64, Corrupted> {
        // SYNC(acknowledge): pairs with Consumer::acknowledge.
        let word = self.layout.header().acknowledged.load(Ordering::Acquire);
        open(word).ok_or(Corrupted("the count of messages that were obeyed cannot be read"))
    }

    /// Takes a block of `len` bytes, or None if the arena has no room.
    pub fn allocate(&mut self, len: usize) -> Result<Option<Block>, Corrupted> {
        self.arena.reclaim()?;
        Ok(self.arena.allocate(len))
    }

    /// Whether blocks are on their way that the consumer has not taken yet: waiting may bring them back.
    pub fn blocks_in_flight(&mut self) -> Result<bool, Corrupted> {
        let head = self.cursor.refresh(&self.layout.header().head)?;
        Ok(self.last_blocks > head)
    }

    /// Whether a unit with `blocks` buffers and `payload` bytes inline can ever be pushed, be it into an empty ring.
    pub fn fits(&self, blocks: usize, payload: usize) -> bool {
        UnitHeader::new(0, 0, 0, blocks, payload)
            .is_some_and(|unit| u64::from(unit.total) <= self.layout.config.ring_capacity / 2)
    }

    /// Whether an allocation that failed may succeed now, or waiting for it is in vain.
    ///
    /// As long as it says no, the consumer rings for every block that it gives back.
    pub fn worth_allocating(&mut self) -> Result<bool, Corrupted> {
        self.layout.header().blocks_wanted.raise();
        let worth = self.arena.reclaimable()? || !self.blocks_in_flight()?;
        if worth {
            self.layout.header().blocks_wanted.lower();
        }
        Ok(worth)
    }

    /// Whether a unit with `blocks` buffers and `payload` bytes inline can be pushed now.
    pub fn writable(&mut self, blocks: usize, payload: usize) -> Result<bool, Corrupted> {
        let Some(header) = UnitHeader::new(0, 0, 0, blocks, payload) else { return Ok(false) };
        self.cursor.has_room(&self.layout.header().head, self.needed(u64::from(header.total)))
    }

    /// Bytes that a unit of `total` bytes takes at the current place, the pad before it included.
    fn needed(&self, total: u64) -> u64 {
        let capacity = self.layout.config.ring_capacity;
        let until_wrap = capacity - (self.cursor.tail() & (capacity - 1));
        if total <= until_wrap { total } else { until_wrap + total }
    }

    /// Pushes an item: it counts towards what the consumer allows, and its wake-up may be put off.
    ///
    /// # Panics
    /// Like the other pushes, if the unit is longer than [`Producer::fits`] allows or a block is of another arena.
    pub fn push_item(&mut self, kind: u16, parts: &[Part], payload: &[u8]) -> Result<Push, Corrupted> {
        // For a producer that never waits, and so is never idle.
        if self.arena.is_untidy()
            && let Some(now) = self.clock.sample()
        {
            self.arena.tidy_at(now)?;
        }
        let (pushed, digest) = self.write(kind, parts, payload)?;
        if pushed == Push::Done {
            self.count(kind, digest);
            self.streaming = false;
            self.sending.sent();
            let in_blocks: u64 = parts.iter().map(Part::bytes_in_block).sum();
            if in_blocks > 0 {
                self.note_ahead(in_blocks);
            }
            self.items += 1;
            let flow = &*self.flow;
            flow.items.store(self.items, Ordering::Relaxed);
            flow.bytes.store(self.bytes, Ordering::Relaxed);
            if self.wake.published(&self.peer, &self.layout.header().items_wanted) {
                add(&flow.wakes, 1);
            }
        }
        Ok(pushed)
    }

    /// Pushes anything else and wakes the consumer at once.
    pub fn push(&mut self, kind: u16, parts: &[Part], payload: &[u8]) -> Result<Push, Corrupted> {
        let (pushed, _) = self.write(kind, parts, payload)?;
        self.streaming &= pushed == Push::Full;
        self.ring();
        Ok(pushed)
    }

    /// Pushes anything else behind which more comes at once: its wake-up may be put off, as that of an item.
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

    /// Pushes a unit that nobody waits for, if there is room at once; returns whether there was.
    ///
    /// Behind a unit that is whole, that is, not between fragments and theirs.
    pub fn push_aside(&mut self, kind: u16, parts: &[Part], payload: &[u8]) -> Result<bool, Corrupted> {
        if !self.fits(parts.len(), payload.len()) || self.streaming {
            return Ok(false);
        }
        Ok(self.write(kind, parts, payload)?.0 == Push::Done)
    }

    /// Pushes one fragment of a buffer that fits no block; the unit that refers to it follows.
    pub fn push_fragment(&mut self, bytes: &[u8]) -> Result<Push, Corrupted> {
        let kind = if self.streaming { KIND_FRAGMENT } else { KIND_FIRST_FRAGMENT };
        let (pushed, _) = self.write(kind, &[], bytes)?;
        self.streaming |= pushed == Push::Done;
        add(&self.flow.fragments, u64::from(pushed == Push::Done));
        self.ring();
        Ok(pushed)
    }

    /// Wakes the consumer if it sleeps for items of this link: no more come for now.
    pub fn flush(&mut self) {
        if self.wake.flush(&self.peer, &self.layout.header().items_wanted) {
            add(&self.flow.wakes, 1);
        }
    }

    /// Wakes the consumer if it sleeps, whatever it sleeps for.
    fn ring(&mut self) {
        if self.wake.ring(&self.peer) {
            add(&self.flow.wakes, 1);
        }
    }

    /// Also gives what tells the unit from others, wherever it lies.
    #[inline]
    fn write(&mut self, kind: u16, parts: &[Part], payload: &[u8]) -> Result<(Push, u64), Corrupted> {
        let unit = self.header(kind, parts.len(), payload.len());
        for part in parts {
            if let Part::Block(block) = part {
                assert!(block.is_of(&self.arena), "a block of another link's arena cannot be sent over this one");
            }
        }
        let total = u64::from(unit.total);
        let needed = self.needed(total);
        if !self.cursor.has_room(&self.layout.header().head, needed)? {
            return Ok((Push::Full, 0));
        }
        if needed > total {
            self.write_pad(needed - total);
        }
        let start = self.cursor.tail() + (needed - total);
        let mut check = unit.checksum(start);
        let mut digest = Digest::default();
        let before;
        let place = self.layout.ring_ptr(start);
        // SAFETY: `needed` bytes from the tail are free by the cursor's check, `total` of them are contiguous at
        // `place`, and this side is the only writer of free bytes. Units start at multiples of 8.
        unsafe {
            let mut entry = place.cast::<[u64; 3]>().add(1).cast::<[u64; 2]>();
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
            place.cast::<[u64; 3]>().write(unit.words(check.finish()));
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

    /// Skips the `total` bytes from the tail to the ring's end.
    fn write_pad(&self, total: u64) {
        let pad = First::pad(self.cursor.tail(), total);
        // SAFETY: at least 8 free, contiguous bytes lie between the tail and the ring's end, both multiples of 8.
        unsafe { self.layout.ring_ptr(self.cursor.tail()).cast::<u64>().write(pad) };
    }

    /// Bytes of the largest fragment.
    pub fn fragment_len(&self) -> usize {
        self.max_inline()
    }
}
