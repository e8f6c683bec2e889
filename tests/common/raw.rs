//! Maps the memory of a link a second time, so that a test can damage the memory as a faulty process would.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use memmap2::{MmapOptions, MmapRaw};
use torchdata_core::link::Link;

pub struct Raw(MmapRaw);

impl Raw {
    pub fn new(link: &Link) -> Self {
        Self(MmapOptions::new().map_raw(&link.region().fd()).unwrap())
    }

    pub fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.0.len());
        // SAFETY: the address is inside the mapping, which exists as long as `self`.
        unsafe { &*self.0.as_mut_ptr().add(offset).cast() }
    }

    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.0.len());
        // SAFETY: the address is aligned and inside the mapping, which exists as long as `self`.
        unsafe { &*self.0.as_mut_ptr().add(offset).cast() }
    }

    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.0.len());
        // SAFETY: the address is aligned and inside the mapping, which exists as long as `self`.
        unsafe { &*self.0.as_mut_ptr().add(offset).cast() }
    }
}
