//! The doorbells of all processes of one loader, in memory that they share.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::backend::system;
use super::bell::{Bell, Parker};
use super::region::Region;
use crate::error::OpenError;

/// Sleeps as the system has it.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemParker;

impl Parker for SystemParker {
    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration) {
        system().park(word, seen, timeout);
    }

    fn unpark(&self, word: &AtomicU32) {
        system().unpark(word);
    }
}

/// The doorbells of all processes of one loader, in one small region.
#[derive(Debug)]
pub struct BellBoard {
    region: Region,
}

impl BellBoard {
    /// Makes `count` silent bells.
    pub fn create(count: usize) -> Result<Arc<Self>, OpenError> {
        let len = count.max(1).saturating_mul(size_of::<CachePadded<Bell>>());
        Ok(Arc::new(Self { region: Region::create(len, len)? }))
    }

    /// Maps the bells behind a descriptor received from their creator.
    pub fn attach(fd: OwnedFd) -> Result<Arc<Self>, OpenError> {
        Ok(Arc::new(Self { region: Region::attach(fd)? }))
    }

    /// The descriptor, to be passed to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// The memory that the bells lie in.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// How many bells there are.
    pub fn len(&self) -> usize {
        self.region.len() / size_of::<CachePadded<Bell>>()
    }

    /// Whether there is no bell.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bell of process `index`, or None if there are fewer.
    pub fn bell(self: &Arc<Self>, index: usize) -> Option<BellRef> {
        (index < self.len()).then(|| BellRef { board: Arc::clone(self), index })
    }
}

/// A bell on a board that it keeps mapped.
#[derive(Debug, Clone)]
pub struct BellRef {
    board: Arc<BellBoard>,
    index: usize,
}

impl BellRef {
    fn bell(&self) -> &Bell {
        // SAFETY: the index was checked against the region, which stays mapped as long as `board` lives and is
        // page-aligned; zeroed memory is a valid `Bell`, padded or not, and all access to it is atomic.
        unsafe { &*self.board.region.as_mut_ptr().cast::<CachePadded<Bell>>().add(self.index) }
    }

    /// See [`Bell::wait`].
    pub fn wait(&self, timeout: Duration, ready: impl FnMut() -> bool) -> bool {
        self.bell().wait(&SystemParker, timeout, ready)
    }

    /// How many processes have a bell on the board.
    pub fn processes(&self) -> usize {
        self.board.len()
    }

    /// See [`Bell::has_sleeper`].
    #[inline]
    pub fn has_sleeper(&self) -> bool {
        self.bell().has_sleeper()
    }

    /// See [`Bell::ring`].
    #[inline]
    pub fn ring(&self) -> bool {
        self.bell().ring(&SystemParker)
    }
}
