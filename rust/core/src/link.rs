//! A link: one ring of units, its arena and the ring of returned blocks, between one producer and one consumer.
//!
//! A *unit* is what crosses: an item, an end, an error, a state, or a fragment of something too large for the arena.
//! In the ring it is a [`UnitHeader`], a table of its blocks and an inline payload, contiguous and padded to 8 bytes;
//! where a unit does not fit before the ring's end, a pad unit fills the rest.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::bell::BellRef;
use crate::consumer::Consumer;
use crate::error::{Corrupted, OpenError};
use crate::header::Layout;
pub use crate::header::LinkConfig;
use crate::producer::Producer;
use crate::region::Region;

/// How long attaching waits for the creator to finish.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// Kind of the unit that fills the ring's end; users' kinds are any other value.
pub(crate) const KIND_PAD: u16 = u16::MAX;
/// Kind of a unit that carries a piece of a buffer that fits no block.
pub(crate) const KIND_FRAGMENT: u16 = u16::MAX - 1;
/// Highest kind that users may give.
pub const LAST_USER_KIND: u16 = u16::MAX - 2;

/// Start of every unit in the ring; little-endian words as the machine has them, both sides being one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct UnitHeader {
    /// Bytes from this header to the next one.
    pub total: u32,
    /// Bytes of the inline payload.
    pub payload: u32,
    pub kind: u16,
    /// Entries of the block table, 16 bytes each: offset and length.
    pub blocks: u16,
    pub reserved: u32,
    pub epoch: u64,
}

pub(crate) const UNIT_HEADER: u64 = size_of::<UnitHeader>() as u64;
pub(crate) const BLOCK_ENTRY: u64 = 16;
const _: () = assert!(UNIT_HEADER == 24);

impl UnitHeader {
    /// Length of a unit, or None where it is beyond what `u32` and `u16` can say.
    pub fn new(kind: u16, epoch: u64, blocks: usize, payload: usize) -> Option<Self> {
        let total = (UNIT_HEADER + BLOCK_ENTRY * blocks as u64 + payload as u64).next_multiple_of(8);
        Some(Self {
            total: u32::try_from(total).ok()?,
            payload: u32::try_from(payload).ok()?,
            kind,
            blocks: u16::try_from(blocks).ok()?,
            reserved: 0,
            epoch,
        })
    }

    /// Checks a header that was read from shared memory against the `available` bytes from it on.
    pub fn check(self, available: u64, until_wrap: u64) -> Result<Self, Corrupted> {
        let total = u64::from(self.total);
        if total < 8 || !total.is_multiple_of(8) || total > available || total > until_wrap {
            return Err(Corrupted("a unit does not fit what was published"));
        }
        if self.kind != KIND_PAD {
            let content = UNIT_HEADER + BLOCK_ENTRY * u64::from(self.blocks) + u64::from(self.payload);
            if content > total {
                return Err(Corrupted("a unit is longer than it says"));
            }
        }
        Ok(self)
    }
}

/// The shared memory of a link, before or after its ends are taken.
#[derive(Debug)]
pub struct Link {
    layout: Arc<Layout>,
}

impl Link {
    /// Makes a link. Sizes are rounded up to what the layout asks for.
    pub fn create(config: LinkConfig) -> Result<Self, OpenError> {
        Ok(Self { layout: Arc::new(Layout::create(config)?) })
    }

    /// Maps the link behind a descriptor received from its creator.
    pub fn attach(fd: OwnedFd) -> Result<Self, OpenError> {
        Self::attach_within(fd, ATTACH_TIMEOUT)
    }

    /// Like [`Link::attach`], waiting at most `timeout` for the creator to finish.
    pub fn attach_within(fd: OwnedFd, timeout: Duration) -> Result<Self, OpenError> {
        Ok(Self { layout: Arc::new(Layout::attach(Region::attach(fd)?, timeout)?) })
    }

    /// The descriptor, to be passed to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.layout.region().fd()
    }

    /// The sizes in force.
    pub fn config(&self) -> LinkConfig {
        self.layout.config
    }

    /// Takes the producer's end, which rings `peer`, the consumer's process.
    pub fn producer(&self, peer: BellRef) -> Result<Producer, OpenError> {
        if self.layout.header().producer_taken.swap(1, Ordering::Relaxed) != 0 {
            return Err(OpenError::Taken("producer"));
        }
        Ok(Producer::new(Arc::clone(&self.layout), peer))
    }

    /// Takes the consumer's end, which rings `peer`, the producer's process.
    pub fn consumer(&self, peer: BellRef) -> Result<Consumer, OpenError> {
        if self.layout.header().consumer_taken.swap(1, Ordering::Relaxed) != 0 {
            return Err(OpenError::Taken("consumer"));
        }
        Ok(Consumer::new(Arc::clone(&self.layout), peer))
    }

    /// Whether some process has taken the consumer's end.
    ///
    /// Relaxed, as nothing else follows from it: who asks only wants to know whether that process came this far.
    pub fn has_consumer(&self) -> bool {
        self.layout.header().consumer_taken.load(Ordering::Relaxed) != 0
    }

    /// A look at whether units wait, for those who hold neither end.
    pub fn probe(&self) -> Probe {
        Probe { layout: Arc::clone(&self.layout) }
    }

    /// Items and bytes that the producer has sent in all.
    pub fn sent(&self) -> (u64, u64) {
        let header = self.layout.header();
        (header.items.0.load(Ordering::Relaxed), header.bytes.0.load(Ordering::Relaxed))
    }
}

/// Tells whether units wait in a link.
#[derive(Debug, Clone)]
pub struct Probe {
    layout: Arc<Layout>,
}

impl Probe {
    /// Whether the producer has published what the consumer has not taken yet.
    #[inline]
    pub fn pending(&self) -> bool {
        let header = self.layout.header();
        header.tail.0.load(Ordering::Relaxed) != header.head.0.load(Ordering::Relaxed)
    }
}
