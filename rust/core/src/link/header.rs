//! The layout of a link's shared memory, and how the two sides agree on it.
//!
//! ```text
//! 0          Header (one page)
//! 4096       data ring      ring_capacity bytes, units of the producer
//! …          return ring    return_capacity u64s, blocks given back by the consumer
//! …          arena          arena_capacity bytes, blocks of the producer
//! ```
//!
//! Everything is fixed-width and position-independent. The creator fills in the sizes and stores the version
//! last; a process that attaches waits for it for a bounded time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use super::cursor;
use crate::error::OpenError;
use crate::integrity::{placed, seal};
use crate::process::bell::Wanted;
use crate::process::region::Region;
use crate::protocol::Ahead;
use crate::stats::{Flow, FlowRef};

/// "tdrslink" in ASCII.
const MAGIC: u64 = u64::from_le_bytes(*b"tdrslink");
/// Changes whenever the layout of the header, of units or of the rings does.
const VERSION: u32 = 8;
/// Room for the header: one page, so that the rings start page-aligned.
const HEADER_LEN: usize = 4096;
/// Blocks and the arena start at multiples of this.
pub(crate) const BLOCK_ALIGN: u64 = 4096;

/// Sizes of the parts of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bytes of the data ring; a power of two, at least 4096.
    pub ring_capacity: u64,
    /// Entries of the return ring, which bounds how many blocks are out at a time; a power of two.
    pub return_capacity: u64,
    /// Bytes of the arena: the most that blocks may take. Only what is used costs memory.
    pub arena_capacity: u64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self { ring_capacity: 256 << 10, return_capacity: 4096, arena_capacity: 256 << 20 }
    }
}

impl LinkConfig {
    /// Rounds the sizes up to what the layout asks for.
    pub fn rounded(self) -> Self {
        Self {
            ring_capacity: self.ring_capacity.clamp(4096, 1 << 30).next_power_of_two(),
            return_capacity: self.return_capacity.clamp(512, 1 << 20).next_power_of_two(),
            arena_capacity: self.arena_capacity.min(1 << 46).next_multiple_of(BLOCK_ALIGN),
        }
    }

    pub(crate) fn return_offset(self) -> u64 {
        HEADER_LEN as u64 + self.ring_capacity
    }

    pub(crate) fn arena_offset(self) -> u64 {
        self.return_offset() + self.return_capacity * 8
    }

    pub(crate) fn total(self) -> u64 {
        self.arena_offset() + self.arena_capacity
    }
}

/// A word without neighbours, so that the two sides do not slow each other down: processors fetch cache lines in pairs.
type Word = CachePadded<AtomicU64>;

/// The first page of a link.
///
/// Stray writes are noticed or harmless. The sizes are read once, checked against each other. The four
/// cursors are sealed words, as are the entries of the return ring, and units carry checksums, so damage to what was
/// published and not read yet is `Corrupted` for the reader. `sent` and `received` are statistics, from which nothing
/// follows. `producer_taken` and `consumer_taken` only keep a second user of an end away. `blocks_wanted` may make
/// a producer that waits for memory sleep to the end of its slice, or a consumer ring in vain; `items_wanted` the same the
/// other way round.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header {
    magic: AtomicU64,
    /// Stored last, with Release; 0 until then.
    version: AtomicU32,
    /// 1 once a process has taken the producer's end.
    pub producer_taken: AtomicU32,
    /// 1 once a process has taken the consumer's end.
    pub consumer_taken: AtomicU32,
    ring_capacity: AtomicU64,
    return_capacity: AtomicU64,
    arena_capacity: AtomicU64,
    /// Data ring, bytes ever written, sealed; written by the producer alone.
    pub tail: Word,
    /// Data ring, bytes ever read, sealed; written by the consumer alone.
    pub head: Word,
    /// Return ring, entries ever written, sealed; written by the consumer alone.
    pub return_tail: Word,
    /// Return ring, entries ever read, sealed; written by the producer alone.
    pub return_head: Word,
    /// The consumer's wish (see `protocol::Grant`); written by the consumer alone.
    pub granted: Word,
    /// Raised while the producer waits for blocks to come back; written by the producer alone.
    pub blocks_wanted: CachePadded<Wanted>,
    /// The epoch in which the producer waits for somebody else, 0 while it does not; written by the producer's process.
    pub starving: Word,
    /// The latest epoch that the producer, main, has ordered on a control link; written by the producer alone.
    pub order: Word,
    /// Messages that the consumer has dealt with; written by the consumer alone.
    pub acknowledged: Word,
    /// Where the consumer was when it had dealt with the last of them; written by the consumer alone, before it.
    pub obeyed_at: Word,
    /// Whether items are worth a ring: lowered while the consumer waits for other links alone; written by it alone.
    pub items_wanted: CachePadded<Wanted>,
    /// Bytes of blocks that the producer may be ahead (see `protocol::Ahead`), sealed; written by the consumer alone.
    pub ahead: Word,
    /// Statistics of the producer, who alone writes them, unless they are kept elsewhere (see [`crate::stats::Board`]).
    pub sent: CachePadded<Flow>,
    /// Those of the consumer.
    pub received: CachePadded<Flow>,
}

const _: () = {
    /// 128 bytes on x86-64 and 64-bit Arm.
    const LINE: usize = align_of::<Word>();
    assert!(size_of::<Word>() == LINE && size_of::<CachePadded<Wanted>>() == LINE);
    assert!(std::mem::offset_of!(Header, version) == 8);
    assert!(std::mem::offset_of!(Header, ring_capacity) == 24);
    assert!(std::mem::offset_of!(Header, tail) == LINE);
    assert!(std::mem::offset_of!(Header, head) == 2 * LINE);
    assert!(std::mem::offset_of!(Header, return_tail) == 3 * LINE);
    assert!(std::mem::offset_of!(Header, return_head) == 4 * LINE);
    assert!(std::mem::offset_of!(Header, granted) == 5 * LINE);
    assert!(std::mem::offset_of!(Header, blocks_wanted) == 6 * LINE);
    assert!(std::mem::offset_of!(Header, starving) == 7 * LINE);
    assert!(std::mem::offset_of!(Header, order) == 8 * LINE);
    assert!(std::mem::offset_of!(Header, acknowledged) == 9 * LINE);
    assert!(std::mem::offset_of!(Header, obeyed_at) == 10 * LINE);
    assert!(std::mem::offset_of!(Header, items_wanted) == 11 * LINE);
    assert!(std::mem::offset_of!(Header, ahead) == 12 * LINE);
    assert!(std::mem::offset_of!(Header, sent) == 13 * LINE);
    assert!(size_of::<Header>() <= HEADER_LEN);
};

/// Entry `position` of a return ring that gives the block at `offset` back: its page, and a check of that and the
/// position.
pub(crate) fn return_entry(position: u64, offset: u64) -> u64 {
    let page = offset / BLOCK_ALIGN;
    page << 30 | placed(page, position)
}

/// The block that an entry gives back, or None if the entry is damaged or was left there by an earlier lap.
pub(crate) fn returned_offset(position: u64, entry: u64) -> Option<u64> {
    let offset = (entry >> 30) * BLOCK_ALIGN;
    (return_entry(position, offset) == entry).then_some(offset)
}

/// A region that was laid out as a link and checked.
#[derive(Debug)]
pub(crate) struct Layout {
    region: Region,
    pub config: LinkConfig,
}

impl Layout {
    pub fn create(config: LinkConfig) -> Result<Self, OpenError> {
        let config = config.rounded();
        let region = Region::create(config.total() as usize, config.arena_offset() as usize)?;
        let layout = Self { region, config };
        layout.region.advise_huge(config.arena_offset() as usize, config.arena_capacity as usize);
        let header = layout.header();
        header.magic.store(MAGIC, Ordering::Relaxed);
        header.ring_capacity.store(config.ring_capacity, Ordering::Relaxed);
        header.return_capacity.store(config.return_capacity, Ordering::Relaxed);
        header.arena_capacity.store(config.arena_capacity, Ordering::Relaxed);
        for cursor in [&header.tail, &header.head, &header.return_tail, &header.return_head] {
            cursor.store(cursor::BIRTH, Ordering::Relaxed);
        }
        for word in [&header.granted, &header.starving, &header.order, &header.acknowledged, &header.obeyed_at] {
            word.store(seal(0), Ordering::Relaxed);
        }
        header.items_wanted.raise();
        header.ahead.store(seal(Ahead::LEAST), Ordering::Relaxed);
        // SYNC(version): pairs with `attach`; a process that sees the version sees the sizes, the cursors and the
        // words.
        header.version.store(VERSION, Ordering::Release);
        Ok(layout)
    }

    pub fn attach(region: Region, timeout: Duration) -> Result<Self, OpenError> {
        if region.len() < HEADER_LEN {
            return Err(OpenError::Invalid("it is smaller than a header"));
        }
        let deadline = Instant::now() + timeout;
        let mut layout = Self { region, config: LinkConfig::default() };
        // SYNC(version): pairs with `create`.
        let version = loop {
            match layout.header().version.load(Ordering::Acquire) {
                0 if Instant::now() >= deadline => return Err(OpenError::NotReady(timeout)),
                0 => std::thread::sleep(Duration::from_micros(200)),
                version => break version,
            }
        };
        let header = layout.header();
        if header.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(OpenError::Invalid("the magic number differs"));
        }
        if version != VERSION {
            return Err(OpenError::Version { found: version, expected: VERSION });
        }
        let config = LinkConfig {
            ring_capacity: header.ring_capacity.load(Ordering::Relaxed),
            return_capacity: header.return_capacity.load(Ordering::Relaxed),
            arena_capacity: header.arena_capacity.load(Ordering::Relaxed),
        };
        if config != config.rounded() || config.total() != layout.region.len() as u64 {
            return Err(OpenError::Invalid("its sizes contradict each other"));
        }
        layout.config = config;
        Ok(layout)
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the region is at least a header long, page-aligned and mapped as long as `self` lives; every bit
        // pattern is a valid header and all access to it is atomic.
        unsafe { &*self.region.as_mut_ptr().cast::<Header>() }
    }

    /// Where the producer (or else the consumer) counts as long as nobody has told it otherwise.
    pub fn flow(self: &Arc<Self>, sent: bool) -> FlowRef {
        let header = self.header();
        let flow: &Flow = if sent { &header.sent } else { &header.received };
        // SAFETY: it lies in the region, which stays mapped as long as this layout.
        unsafe { FlowRef::new(flow, Arc::clone(self) as _) }
    }

    /// Pointer to byte `position` (taken modulo the capacity) of the data ring.
    pub fn ring_ptr(&self, position: u64) -> *mut u8 {
        let place = HEADER_LEN as u64 + (position & (self.config.ring_capacity - 1));
        // SAFETY: `place` is less than HEADER_LEN + ring_capacity, inside the region by its checked layout.
        unsafe { self.region.as_mut_ptr().add(place as usize) }
    }

    /// Entry `position` (taken modulo the capacity) of the return ring: see [`return_entry`].
    pub fn return_slot(&self, position: u64) -> &AtomicU64 {
        let place = self.config.return_offset() + 8 * (position & (self.config.return_capacity - 1));
        // SAFETY: inside the region by its checked layout, a multiple of 8, and accessed only as an atomic.
        unsafe { &*self.region.as_mut_ptr().add(place as usize).cast::<AtomicU64>() }
    }

    /// Makes sure that a part of the arena can be touched; false if there is no room for it.
    pub fn reserve_arena(&self, offset: u64, len: u64) -> bool {
        self.region.reserve((self.config.arena_offset() + offset) as usize, len as usize).is_ok()
    }

    /// Gives the pages of a part of the arena back; false if that cannot be done.
    pub fn punch_arena(&self, offset: u64, len: u64) -> bool {
        self.region.punch((self.config.arena_offset() + offset) as usize, len as usize).is_ok()
    }

    /// Pointer to byte `offset` of the arena.
    ///
    /// # Panics
    /// If the offset lies outside the arena: callers check first.
    pub fn arena_ptr(&self, offset: u64) -> *mut u8 {
        assert!(offset < self.config.arena_capacity, "offset outside the arena");
        // SAFETY: just checked, and the arena lies inside the region.
        unsafe { self.region.as_mut_ptr().add((self.config.arena_offset() + offset) as usize) }
    }
}
