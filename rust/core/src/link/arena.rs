//! Manages an arena: the shared memory of a link for large buffers. The link's producer allocates the blocks of the
//! arena.
//!
//! An allocation uses the lowest free range that is long enough, so that few memory pages are used.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::header::{BLOCK_ALIGN, Layout, LinkConfig, returned_offset};
use crate::error::Corrupted;
use crate::process::fork;
use crate::stats::FlowRef;
use crate::sync::cursor::ConsumerCursor;

#[derive(Debug, Clone, Copy)]
struct Holders {
    len: u64,
    /// Whether a [`Block`] object in the producer's process refers to the block.
    local: bool,
    /// How often the block was sent to the consumer, minus how often the consumer has returned the block.
    remote: u64,
}

/// Memory of the arena that was unused for at least the time `PERIOD` is returned to the operating system.
const PERIOD: Duration = Duration::from_secs(2);
const HUGE_PAGE: u64 = 2 << 20;

#[derive(Debug)]
struct Allocator {
    free: BTreeMap<u64, u64>,
    taken: HashMap<u64, Holders>,
    most: usize,
    in_use: u64,
    peak: u64,
    flow: Option<FlowRef>,
    recent: u64,
    period_began: Instant,
    dirty: u64,
    /// Whether the file system can free pages of the arena.
    punches: bool,
    returns: ConsumerCursor,
}

impl Allocator {
    fn new(capacity: u64, most: usize) -> Self {
        let free = (capacity > 0).then_some((0, capacity)).into_iter().collect();
        Self {
            free,
            taken: HashMap::new(),
            most,
            in_use: 0,
            peak: 0,
            flow: None,
            recent: 0,
            period_began: Instant::now(),
            dirty: 0,
            punches: true,
            returns: ConsumerCursor::new(most as u64),
        }
    }

    /// Returns the offset and the rounded length of a new block, or None if the arena is full.
    fn allocate(&mut self, len: u64) -> Option<(u64, u64)> {
        let len = len.max(1).checked_next_multiple_of(BLOCK_ALIGN)?;
        if self.taken.len() >= self.most {
            return None;
        }
        let (&offset, &extent) = self.free.iter().find(|&(_, &extent)| extent >= len)?;
        self.free.remove(&offset);
        if extent > len {
            self.free.insert(offset + len, extent - len);
        }
        self.taken.insert(offset, Holders { len, local: true, remote: 0 });
        self.in_use += len;
        self.peak = self.peak.max(self.in_use);
        self.mirror();
        self.touch(offset + len);
        Some((offset, len))
    }

    fn mirror(&self) {
        if let Some(flow) = &self.flow {
            flow.arena_peak.store(self.peak, Ordering::Relaxed); // stored first, because `used` must never exceed `peak`
            // SYNC(used): pairs with `flow` in `stats/read.rs`.
            flow.arena_used.store(self.in_use, Ordering::Release);
        }
    }

    fn returned(&mut self, offset: u64) -> Result<(), Corrupted> {
        match self.taken.get_mut(&offset) {
            Some(holders) if holders.remote > 0 => holders.remote -= 1,
            _ => return Err(Corrupted("a block was returned that was not sent")),
        }
        self.free_if_unheld(offset);
        Ok(())
    }

    fn touch(&mut self, end: u64) {
        self.recent = self.recent.max(end);
        self.dirty = self.dirty.max(end);
    }

    fn take_idle(&mut self, now: Instant) -> Vec<Range<u64>> {
        if now.saturating_duration_since(self.period_began) < PERIOD {
            return Vec::new();
        }
        let start = std::mem::take(&mut self.recent).next_multiple_of(HUGE_PAGE);
        let end = self.dirty;
        (self.dirty, self.period_began) = (start.min(end), now);
        let parts = self.free.iter().map(|(&free, &len)| free.max(start)..(free + len).min(end));
        parts.filter(|part| part.start < part.end).collect()
    }

    fn free_if_unheld(&mut self, offset: u64) {
        let Some(holders) = self.taken.get(&offset) else { return };
        if holders.local || holders.remote > 0 {
            return;
        }
        let (mut start, mut len) = (offset, holders.len);
        self.in_use -= len;
        self.mirror();
        self.touch(start + len);
        self.taken.remove(&offset);
        if let Some((&before, &extent)) = self.free.range(..start).next_back()
            && before + extent == start
        {
            self.free.remove(&before);
            (start, len) = (before, len + extent);
        }
        if let Some(extent) = self.free.remove(&(start + len)) {
            len += extent;
        }
        self.free.insert(start, len);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaUse {
    pub in_use: u64,
    pub peak: u64,
    pub blocks: usize,
}

#[derive(Debug)]
pub struct Arena {
    layout: Arc<Layout>,
    allocator: Mutex<Allocator>,
    untidy: AtomicBool,
    /// Only the process with this `fork::generation` may allocate and free blocks.
    generation: u64,
}

impl Arena {
    pub(crate) fn new(layout: Arc<Layout>) -> Arc<Self> {
        let LinkConfig { arena_capacity, return_capacity, .. } = layout.config;
        let allocator = Mutex::new(Allocator::new(arena_capacity, return_capacity as usize));
        Arc::new(Self { layout, allocator, untidy: AtomicBool::new(false), generation: fork::generation() })
    }

    fn lock(&self) -> MutexGuard<'_, Allocator> {
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_into(&self, flow: FlowRef) {
        let mut allocator = self.lock();
        allocator.peak = allocator.peak.max(flow.arena_peak.load(Ordering::Relaxed));
        allocator.flow = Some(flow);
        allocator.mirror();
    }

    /// Allocates a page-aligned block of at least `len` bytes, or returns None if the arena is full.
    pub fn allocate(self: &Arc<Self>, len: usize) -> Option<Block> {
        if self.generation != fork::generation() {
            return None;
        }
        let (offset, whole) = self.lock().allocate(len as u64)?;
        self.untidy.store(true, Ordering::Relaxed);
        self.layout.region.mapping.pin();
        let block = Block { arena: Arc::clone(self), offset, len };
        let start = self.layout.config.arena_offset() + offset;
        self.layout.region.reserve(start as usize, whole as usize).is_ok().then_some(block)
    }

    pub fn reclaim(&self) -> Result<(), Corrupted> {
        let header = self.layout.header();
        let mut allocator = self.lock();
        loop {
            let available = allocator.returns.available(&header.return_tail)?;
            if available == 0 {
                return Ok(());
            }
            let head = allocator.returns.head();
            for position in head..head + available {
                let entry = self.layout.return_slot(position).load(Ordering::Relaxed);
                let offset = returned_offset(position, entry).ok_or(Corrupted("a returned block was overwritten"))?;
                allocator.returned(offset)?;
            }
            allocator.returns.release(&header.return_head, available);
        }
    }

    pub fn reclaimable(&self) -> Result<bool, Corrupted> {
        Ok(self.lock().returns.available(&self.layout.header().return_tail)? > 0)
    }

    /// Frees returned blocks and unused memory. Returns true if the caller must call this method again in a few seconds
    /// to free more memory.
    pub fn tidy(&self, now: Instant) -> Result<bool, Corrupted> {
        if self.generation != fork::generation() {
            return Ok(false);
        }
        self.reclaim()?;
        // While the operating system frees the idle pages, this lock prevents other threads from allocating the same
        // pages.
        let mut allocator = self.lock();
        if allocator.punches {
            for part in allocator.take_idle(now) {
                let (start, len) = (self.layout.config.arena_offset() + part.start, part.end - part.start);
                allocator.punches &= self.layout.region.punch(start as usize, len as usize).is_ok();
            }
        }
        let untidy = allocator.in_use > 0 || allocator.punches && allocator.dirty > 0;
        self.untidy.store(untidy, Ordering::Relaxed);
        Ok(untidy)
    }

    #[inline]
    pub fn is_untidy(&self) -> bool {
        self.untidy.load(Ordering::Relaxed)
    }

    pub(crate) fn send(&self, offset: u64) {
        if let Some(holders) = self.lock().taken.get_mut(&offset) {
            holders.remote += 1;
        }
    }

    fn dropped(&self, offset: u64) {
        if self.generation != fork::generation() {
            return;
        }
        let mut allocator = self.lock();
        if let Some(holders) = allocator.taken.get_mut(&offset) {
            holders.local = false;
        }
        allocator.free_if_unheld(offset);
    }

    pub fn capacity(&self) -> u64 {
        self.layout.config.arena_capacity
    }

    pub fn holds(&self, address: *const u8) -> bool {
        self.capacity() > 0
            && (address as usize).wrapping_sub(self.layout.arena_ptr(0) as usize) < self.capacity() as usize
    }

    pub fn usage(&self) -> ArenaUse {
        let allocator = self.lock();
        ArenaUse { in_use: allocator.in_use, peak: allocator.peak, blocks: allocator.taken.len() }
    }
}

/// An allocated block of the arena. A dropped block becomes free once the consumer has returned the block.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Arena>,
    offset: u64,
    len: usize,
}

impl Block {
    /// Returns the page-aligned start of the block, which is valid until the block is dropped.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.arena.layout.arena_ptr(self.offset)
    }

    /// Returns the requested number of bytes, which is not rounded up to memory pages.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn is_of(&self, arena: &Arc<Arena>) -> bool {
        Arc::ptr_eq(&self.arena, arena)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.layout.region.mapping.unpin();
        self.arena.dropped(self.offset);
    }
}
