//! Creates and maps the shared memory of a link, and hands out its two ends.

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
use crate::protocol::CommandState;

/// The shared memory of a link. The producer and the consumer can each be taken only once.
#[derive(Debug, Clone)]
pub struct Link {
    pub(super) layout: Arc<Layout>,
}

impl Link {
    pub fn create(config: LinkConfig) -> Result<Self, OpenError> {
        Ok(Self { layout: Arc::new(Layout::create(config)?) })
    }

    pub fn attach(fd: OwnedFd) -> Result<Self, OpenError> {
        Ok(Self { layout: Arc::new(Layout::attach(Region::attach(fd)?)?) })
    }

    pub fn region(&self) -> &Region {
        &self.layout.region
    }

    /// Takes the producer end, or returns an error if the producer end is already taken. `peer` is the bell that wakes
    /// the consumer's process.
    pub fn producer(&self, peer: BellRef) -> Result<Producer, OpenError> {
        if self.layout.header().producer_taken.swap(1, Ordering::Relaxed) != 0 {
            return Err(OpenError::Taken("producer"));
        }
        Ok(Producer::new(Arc::clone(&self.layout), peer))
    }

    /// Takes the consumer end, or returns an error if the consumer end is already taken. `peer` is the bell that wakes
    /// the producer's process.
    pub fn consumer(&self, peer: BellRef) -> Result<Consumer, OpenError> {
        if self.layout.header().consumer_taken.swap(1, Ordering::Relaxed) != 0 {
            return Err(OpenError::Taken("consumer"));
        }
        Ok(Consumer::new(Arc::clone(&self.layout), peer))
    }

    pub fn consumer_after(&self, earlier: &Consumer) -> Result<Consumer, OpenError> {
        let mut next = self.consumer(earlier.peer().clone())?;
        next.follow(earlier);
        Ok(next)
    }

    pub fn has_consumer(&self) -> bool {
        // A relaxed load suffices, because no code reads other shared data based on the flag `consumer_taken`.
        self.layout.header().consumer_taken.load(Ordering::Relaxed) != 0
    }

    /// Returns how many items and bytes the producer has sent. Both numbers are 0 if the items and bytes are counted on
    /// a statistics board instead.
    pub fn sent(&self) -> (u64, u64) {
        let sent = &self.layout.header().sent;
        (sent.items.load(Ordering::Relaxed), sent.bytes.load(Ordering::Relaxed))
    }

    /// Returns whether the ring contains messages that the consumer has not taken yet.
    #[inline]
    pub fn pending(&self) -> bool {
        let header = self.layout.header();
        header.tail.load(Ordering::Relaxed) != header.head.load(Ordering::Relaxed)
    }

    /// Returns whether the main process has commanded this child to stop, or to begin a later epoch than `epoch`.
    #[inline]
    pub fn is_superseded(&self, epoch: u32) -> Result<bool, Corrupted> {
        // SYNC(order): pairs with Producer::order.
        let word = self.layout.header().order.load(Ordering::Acquire);
        let order = open(word).ok_or(Corrupted("the ordered epoch cannot be read"))?;
        Ok(CommandState::is_superseded(epoch, order))
    }

    /// Informs the consumer that this process is waiting for items of the dispatching process in `epoch`.
    pub fn starve(&self, epoch: u32, peer: &BellRef) {
        // SYNC(starve): pairs with Consumer::starves.
        self.layout.header().starving.store(seal(u64::from(epoch)), Ordering::Release);
        peer.ring();
    }

    pub fn stop_starving(&self) {
        self.layout.header().starving.store(seal(0), Ordering::Relaxed);
    }
}
