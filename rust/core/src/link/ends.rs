//! The shared memory of a link, of which each side takes its end, and what those see of it who hold neither.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::consumer::Consumer;
use super::header::Layout;
use super::header::LinkConfig;
use super::producer::Producer;
use crate::error::{Corrupted, OpenError};
use crate::integrity::{open, seal};
use crate::process::board::BellRef;
use crate::process::region::Region;
use crate::protocol::Obedience;

/// How long attaching waits for the creator to finish.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

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

    /// The memory that the link lies in.
    pub fn region(&self) -> &Region {
        self.layout.region()
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

    /// Takes the consumer's end in place of `earlier`, the end of a link whose producer was replaced by another
    /// process.
    pub fn consumer_after(&self, earlier: &Consumer) -> Result<Consumer, OpenError> {
        let mut next = self.consumer(earlier.peer().clone())?;
        next.follow(earlier);
        Ok(next)
    }

    /// Whether some process has taken the consumer's end.
    ///
    /// Relaxed, as nothing else follows from it: who asks only wants to know whether that process came this far.
    pub fn has_consumer(&self) -> bool {
        self.layout.header().consumer_taken.load(Ordering::Relaxed) != 0
    }

    /// The memory of the link, for who carries units between two of them.
    pub(super) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// A look at whether units wait, for those who hold neither end.
    pub fn probe(&self) -> Probe {
        Probe { layout: Arc::clone(&self.layout) }
    }

    /// The producer's process's way to tell the consumer, behind `peer`, that it starves.
    pub fn announcer(&self, peer: BellRef) -> Announcer {
        Announcer { layout: Arc::clone(&self.layout), peer }
    }

    /// Items and bytes that the producer has sent in all, unless it counts elsewhere.
    pub fn sent(&self) -> (u64, u64) {
        let sent = &self.layout.header().sent;
        (sent.items.load(Ordering::Relaxed), sent.bytes.load(Ordering::Relaxed))
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
        // Of equal positions the sealed words are equal. If one is damaged, the look that follows reports it.
        header.tail.load(Ordering::Relaxed) != header.head.load(Ordering::Relaxed)
    }

    /// Whether what runs in `epoch` is in vain, as the producer has ordered a later one, or the end.
    #[inline]
    pub fn is_superseded(&self, epoch: u32) -> Result<bool, Corrupted> {
        // SYNC(order): pairs with Producer::order.
        let word = self.layout.header().order.load(Ordering::Acquire);
        let order = open(word).ok_or(Corrupted("the epoch that was ordered cannot be read"))?;
        Ok(Obedience::is_superseded(epoch, order))
    }

    /// Returns the consumer's place when it had dealt with its last message; None if it has not dealt with `count` of
    /// them. To be asked while no other message is on its way.
    pub fn obeyed_at(&self, count: u64) -> Result<Option<u64>, Corrupted> {
        let header = self.layout.header();
        // SYNC(acknowledge): pairs with Consumer::acknowledge.
        let obeyed = open(header.acknowledged.load(Ordering::Acquire));
        let place = open(header.obeyed_at.load(Ordering::Relaxed));
        let (Some(obeyed), Some(place)) = (obeyed, place) else {
            return Err(Corrupted("how far a message was obeyed cannot be read"));
        };
        Ok((obeyed >= count).then_some(place))
    }
}

/// Tells the consumer of a link that its producer cannot go on before somebody else does: it starves.
#[derive(Debug, Clone)]
pub struct Announcer {
    layout: Arc<Layout>,
    peer: BellRef,
}

impl Announcer {
    /// Says that the producer starves in `epoch`, and wakes the consumer.
    pub fn starve(&self, epoch: u32) {
        // SYNC(starve): pairs with Consumer::starves; nothing but the word itself is read through it.
        self.layout.header().starving.store(seal(u64::from(epoch)), Ordering::Release);
        self.peer.ring();
    }

    /// Says that it does not starve.
    pub fn go_on(&self) {
        self.layout.header().starving.store(seal(0), Ordering::Relaxed);
    }
}
