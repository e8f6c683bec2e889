//! Creates and maps the shared memory of a link, from which one process takes the producer and another the consumer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::consumer::Consumer;
use super::header::{Layout, LinkConfig};
use super::producer::Producer;
use crate::error::{Corrupted, OpenError};
use crate::integrity::{open, seal};
use crate::process::board::BellRef;
use crate::process::region::Region;
use crate::protocol::Obedience;

/// The shared memory of a link. The producer and the consumer can each be taken once.
#[derive(Debug, Clone)]
pub struct Link {
    pub(super) layout: Arc<Layout>,
}

impl Link {
    pub fn create(config: LinkConfig) -> Result<Self, OpenError> {
        Ok(Self { layout: Arc::new(Layout::create(config)?) })
    }

    /// Maps the link of the descriptor `fd`, which this process received from the process that created the link.
    pub fn attach(fd: OwnedFd) -> Result<Self, OpenError> {
        Ok(Self { layout: Arc::new(Layout::attach(Region::attach(fd)?)?) })
    }

    pub fn region(&self) -> &Region {
        &self.layout.region
    }

    /// Takes the producer of the link. `peer` is the bell of the consumer's process. Fails if the producer is taken.
    pub fn producer(&self, peer: BellRef) -> Result<Producer, OpenError> {
        if self.layout.header().producer_taken.swap(1, Ordering::Relaxed) != 0 {
            return Err(OpenError::Taken("producer"));
        }
        Ok(Producer::new(Arc::clone(&self.layout), peer))
    }

    /// Takes the consumer of the link. `peer` is the bell of the producer's process. Fails if the consumer is taken.
    pub fn consumer(&self, peer: BellRef) -> Result<Consumer, OpenError> {
        if self.layout.header().consumer_taken.swap(1, Ordering::Relaxed) != 0 {
            return Err(OpenError::Taken("consumer"));
        }
        Ok(Consumer::new(Arc::clone(&self.layout), peer))
    }

    /// Takes the consumer of a new link, which replaces the link of `earlier` because the earlier producer has exited.
    pub fn consumer_after(&self, earlier: &Consumer) -> Result<Consumer, OpenError> {
        let mut next = self.consumer(earlier.peer().clone())?;
        next.follow(earlier);
        Ok(next)
    }

    pub fn has_consumer(&self) -> bool {
        // A relaxed load suffices, because no code reads other data based on this flag.
        self.layout.header().consumer_taken.load(Ordering::Relaxed) != 0
    }

    /// Returns the numbers of items and bytes that the producer has sent. The numbers stay 0 if the producer counts
    /// into other memory (see [`Producer::count_into`]).
    pub fn sent(&self) -> (u64, u64) {
        let sent = &self.layout.header().sent;
        (sent.items.load(Ordering::Relaxed), sent.bytes.load(Ordering::Relaxed))
    }

    /// Returns whether the ring contains published units that the consumer has not taken yet.
    #[inline]
    pub fn pending(&self) -> bool {
        let header = self.layout.header();
        // Comparing the words suffices, because each word contains a position and check bits of this position.
        header.tail.load(Ordering::Relaxed) != header.head.load(Ordering::Relaxed)
    }

    /// Returns whether the producer has ordered a stop, or an epoch that is later than `epoch`.
    #[inline]
    pub fn is_superseded(&self, epoch: u32) -> Result<bool, Corrupted> {
        // SYNC(order): pairs with Producer::order.
        let word = self.layout.header().order.load(Ordering::Acquire);
        let order = open(word).ok_or(Corrupted("the ordered epoch cannot be read"))?;
        Ok(Obedience::is_superseded(epoch, order))
    }

    /// Informs the consumer, whose bell is `peer`, that the producer's process waits for another process in `epoch`.
    pub fn starve(&self, epoch: u32, peer: &BellRef) {
        // SYNC(starve): pairs with Consumer::starves; no other data is read through this word.
        self.layout.header().starving.store(seal(u64::from(epoch)), Ordering::Release);
        peer.ring();
    }

    /// Informs the consumer that the producer's process no longer waits for another process.
    pub fn go_on(&self) {
        self.layout.header().starving.store(seal(0), Ordering::Relaxed);
    }
}
