//! Manages the bells of all processes of a loader, which are in one region of shared memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::backend::system;
use super::region::Region;
use crate::error::OpenError;
use crate::sync::bell::{Bell, Parker};

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

#[derive(Debug)]
pub struct BellBoard {
    pub region: Region,
}

impl BellBoard {
    pub fn create(count: usize) -> Result<Arc<Self>, OpenError> {
        let len = count.max(1).saturating_mul(size_of::<CachePadded<Bell>>());
        Ok(Arc::new(Self { region: Region::create("torchdata", len, len)? }))
    }

    pub fn attach(fd: OwnedFd) -> Result<Arc<Self>, OpenError> {
        Ok(Arc::new(Self { region: Region::attach(fd)? }))
    }

    pub fn len(&self) -> usize {
        self.region.len() / size_of::<CachePadded<Bell>>()
    }

    pub fn bell(self: &Arc<Self>, index: usize) -> Option<BellRef> {
        (index < self.len()).then(|| BellRef { board: Arc::clone(self), index })
    }
}

/// A reference to the bell of one process, which keeps the shared memory mapped.
#[derive(Debug, Clone)]
pub struct BellRef {
    board: Arc<BellBoard>,
    index: usize,
}

impl BellRef {
    fn bell(&self) -> &Bell {
        // SAFETY: `BellBoard::bell` has checked the index. The region is page-aligned, and `self.board` keeps it
        // mapped. Zeroed memory is a valid `Bell`, and all access is atomic.
        unsafe { &*self.board.region.as_mut_ptr().cast::<CachePadded<Bell>>().add(self.index) }
    }

    pub fn wait(&self, timeout: Duration, ready: impl FnMut() -> bool) -> bool {
        self.bell().wait(&SystemParker, timeout, ready)
    }

    pub fn processes(&self) -> usize {
        self.board.len()
    }

    #[inline]
    pub fn has_sleeper(&self) -> bool {
        self.bell().has_sleeper()
    }

    #[inline]
    pub fn ring(&self) -> bool {
        self.bell().ring(&SystemParker)
    }
}
