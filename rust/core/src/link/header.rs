//! Defines the layout of a link's shared memory, and initializes this memory.
//!
//! ```text
//! 0          Header (one page)
//! 4096       data ring      ring_capacity bytes, messages of the producer
//! …          return ring    return_capacity u64s, blocks returned by the consumer
//! …          arena          arena_capacity bytes, blocks of the producer
//! ```
//!
//! The creator of a link writes the version last, so the sizes are valid when a process can read the version.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::error::OpenError;
use crate::integrity::{keyed, seal};
use crate::process::region::Region;
use crate::protocol::Ahead;
use crate::stats::{Flow, FlowRef};
use crate::sync::bell::Wanted;
use crate::sync::cursor;

const MAGIC: u64 = u64::from_le_bytes(*b"tdrslink");
/// The version of the layout, which must be increased whenever the layout changes.
const VERSION: u32 = 9;
const HEADER_LEN: usize = 4096;
pub(crate) const BLOCK_ALIGN: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkConfig {
    /// The size of the data ring in bytes, which is a power of two.
    pub ring_capacity: u64,
    /// The number of entries of the return ring, and the maximum number of allocated blocks.
    pub return_capacity: u64,
    pub arena_capacity: u64,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self { ring_capacity: 256 << 10, return_capacity: 4096, arena_capacity: 256 << 20 }
    }
}

impl LinkConfig {
    /// Returns a copy with sizes that are rounded up and inside the valid ranges.
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

type Word = CachePadded<AtomicU64>;

/// Accidental writes to the header are either detected or harmless.
///
/// Control words contain check bits, and messages contain checksums. A damaged header field without check bits only
/// falsifies statistics, or delays a wake-up by at most 100 ms.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header {
    magic: AtomicU64,
    /// The version of the layout, or 0 until the creator has initialized all other fields.
    version: AtomicU32,
    pub producer_taken: AtomicU32,
    pub consumer_taken: AtomicU32,
    ring_capacity: AtomicU64,
    return_capacity: AtomicU64,
    arena_capacity: AtomicU64,
    /// The total number of bytes that the producer has written to the data ring.
    pub tail: Word,
    /// The total number of bytes that the consumer has read from the data ring.
    pub head: Word,
    /// The total number of entries that the consumer has written to the return ring.
    pub return_tail: Word,
    /// The total number of entries that the producer has read from the return ring.
    pub return_head: Word,
    /// The consumer's permission to send items, encoded as a `protocol::Grant`.
    pub granted: Word,
    /// A flag that the producer sets while it waits for returned blocks.
    pub blocks_wanted: CachePadded<Wanted>,
    /// The current epoch while the sending process waits for items of the dispatching process, or 0 otherwise.
    pub starving: Word,
    /// The latest epoch that the main process has commanded, or the command to stop.
    pub order: Word,
    pub acknowledged: Word,
    /// A flag that the consumer sets while it sleeps until an item arrives.
    pub items_wanted: CachePadded<Wanted>,
    /// The maximum number of bytes in blocks that the consumer has not read yet.
    pub ahead: Word,
    pub sent: CachePadded<Flow>,
    pub received: CachePadded<Flow>,
}

const _: () = {
    const LINE: usize = align_of::<Word>();
    assert!(size_of::<Word>() == LINE && size_of::<CachePadded<Wanted>>() == LINE);
    assert!(std::mem::offset_of!(Header, version) == 8);
    assert!(std::mem::offset_of!(Header, ring_capacity) == 24);
    assert!(std::mem::offset_of!(Header, tail) == LINE);
    assert!(std::mem::offset_of!(Header, sent) == 12 * LINE); // eleven words precede `sent`
    assert!(size_of::<Header>() <= HEADER_LEN);
};

/// Encodes a returned block as the number of its first memory page, with check bits that depend on `position`.
pub(crate) fn return_entry(position: u64, offset: u64) -> u64 {
    let page = offset / BLOCK_ALIGN;
    page << 30 | keyed(page, position)
}

/// Decodes a block's offset from an entry of the return ring, or returns None for a damaged or misplaced entry.
pub(crate) fn returned_offset(position: u64, entry: u64) -> Option<u64> {
    let offset = (entry >> 30) * BLOCK_ALIGN;
    (return_entry(position, offset) == entry).then_some(offset)
}

#[derive(Debug)]
pub(crate) struct Layout {
    pub region: Region,
    pub config: LinkConfig,
}

impl Layout {
    pub fn create(config: LinkConfig) -> Result<Self, OpenError> {
        let config = config.rounded();
        let region = Region::create("torchdata", config.total() as usize, config.arena_offset() as usize)?;
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
        for word in [&header.granted, &header.starving, &header.order, &header.acknowledged] {
            word.store(seal(0), Ordering::Relaxed);
        }
        header.items_wanted.raise();
        header.ahead.store(seal(Ahead::LEAST), Ordering::Relaxed);
        // SYNC(version): pairs with `attach`. A process that reads the version also sees all earlier stores to the
        // header.
        header.version.store(VERSION, Ordering::Release);
        Ok(layout)
    }

    pub fn attach(region: Region) -> Result<Self, OpenError> {
        if region.len() < HEADER_LEN {
            return Err(OpenError::Invalid("it is smaller than a header"));
        }
        let mut layout = Self { region, config: LinkConfig::default() };
        let header = layout.header();
        // SYNC(version): pairs with `create`.
        let version = header.version.load(Ordering::Acquire);
        if header.magic.load(Ordering::Relaxed) != MAGIC || version == 0 {
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
            return Err(OpenError::Invalid("its sizes are inconsistent"));
        }
        layout.config = config;
        Ok(layout)
    }

    pub fn header(&self) -> &Header {
        // SAFETY: `create` and `attach` ensure that the region is at least as long as a header. The region is
        // page-aligned, and `self` keeps the region mapped. Every bit pattern is a valid header, and all access to
        // headers is atomic.
        unsafe { &*self.region.as_mut_ptr().cast::<Header>() }
    }

    pub fn flow(self: &Arc<Self>, sent: bool) -> FlowRef {
        let header = self.header();
        let flow: &Flow = if sent { &header.sent } else { &header.received };
        // SAFETY: the counters are in the region, and the `Arc` in the result keeps the region mapped.
        unsafe { FlowRef::new(flow, Arc::clone(self) as _) }
    }

    pub fn ring_ptr(&self, position: u64) -> *mut u8 {
        let offset = HEADER_LEN as u64 + (position & (self.config.ring_capacity - 1));
        // SAFETY: `offset` is less than HEADER_LEN + ring_capacity. `create` and `attach` check that the ring is in the
        // region.
        unsafe { self.region.as_mut_ptr().add(offset as usize) }
    }

    pub fn return_slot(&self, position: u64) -> &AtomicU64 {
        let offset = self.config.return_offset() + 8 * (position & (self.config.return_capacity - 1));
        // SAFETY: `create` or `attach` has checked the layout, so the entry is inside the region, at a multiple of 8
        // bytes. All access to entries is atomic.
        unsafe { &*self.region.as_mut_ptr().add(offset as usize).cast::<AtomicU64>() }
    }

    /// # Panics
    /// If the offset is outside the arena.
    pub fn arena_ptr(&self, offset: u64) -> *mut u8 {
        assert!(offset < self.config.arena_capacity, "offset outside the arena");
        // SAFETY: the assertion has checked the offset, and the arena is inside the region.
        unsafe { self.region.as_mut_ptr().add((self.config.arena_offset() + offset) as usize) }
    }
}
