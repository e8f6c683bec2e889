//! Defines references to the counters of links, and guards that measure waits.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::clock::nanoseconds;
use super::layout::{Flow, Wait};

type Keeper = Arc<dyn std::any::Any + Send + Sync>;

/// A reference to counters in shared memory. `keeper` keeps the memory mapped.
#[derive(Debug)]
pub struct Counter<C> {
    counters: NonNull<C>,
    keeper: Keeper,
}

pub type FlowRef = Counter<Flow>;

pub type WaitRef = Counter<Wait>;

// SAFETY: all access to the counters is atomic, and a `Keeper` can be moved to and shared with other threads.
unsafe impl<C: Sync> Send for Counter<C> {}
// SAFETY: all access to the counters is atomic, and a `Keeper` can be moved to and shared with other threads.
unsafe impl<C: Sync> Sync for Counter<C> {}

impl<C> Counter<C> {
    /// # Safety
    /// The counters must be valid as long as `keeper` exists.
    pub(crate) unsafe fn new(counters: &C, keeper: Keeper) -> Self {
        Self { counters: NonNull::from(counters), keeper }
    }
}

impl<C> Clone for Counter<C> {
    fn clone(&self) -> Self {
        Self { counters: self.counters, keeper: Arc::clone(&self.keeper) }
    }
}

impl<C> Deref for Counter<C> {
    type Target = C;

    #[inline]
    fn deref(&self) -> &C {
        // SAFETY: the caller of `new` guarantees that the counters are valid as long as `self.keeper` exists.
        unsafe { self.counters.as_ref() }
    }
}

impl WaitRef {
    pub fn of(flow: &FlowRef) -> Self {
        Self { counters: NonNull::from(&flow.wait), keeper: Arc::clone(&flow.keeper) }
    }

    /// Begins a wait, which ends when the caller drops the returned guard.
    pub fn begin(&self) -> Waiting<'_> {
        Wait::begin(self, nanoseconds());
        Waiting(self)
    }
}

#[derive(Debug)]
pub struct Waiting<'a>(&'a Wait);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.end(nanoseconds());
    }
}
