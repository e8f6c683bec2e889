//! Defines references to the counters of links, and measures waits.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::clock::nanoseconds;
use super::layout::{Flow, Wait};

type Keeper = Arc<dyn std::any::Any + Send + Sync>;

/// A reference to counters on a board or in the header of a link, which keeps their memory mapped.
#[derive(Debug)]
pub struct Counter<C> {
    counters: NonNull<C>,
    keeper: Keeper,
}

/// The counters of one end of a link.
pub type FlowRef = Counter<Flow>;

/// A reference to a counter of waits. Unlike a borrow, a `WaitRef` lets code borrow its owner's other fields during the
/// wait.
pub type WaitRef = Counter<Wait>;

// SAFETY: all access to the counters is atomic, and the keeper can be shared.
unsafe impl<C: Sync> Send for Counter<C> {}
// SAFETY: all access to the counters is atomic, and the keeper can be shared.
unsafe impl<C: Sync> Sync for Counter<C> {}

impl<C> Counter<C> {
    /// # Safety
    /// The counters are valid as long as `keeper` exists.
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
        // SAFETY: the memory is valid as long as the keeper, which this object owns.
        unsafe { self.counters.as_ref() }
    }
}

impl WaitRef {
    /// Returns the counter of the waits of one link end.
    pub fn of(flow: &FlowRef) -> Self {
        Self { counters: NonNull::from(&flow.wait), keeper: Arc::clone(&flow.keeper) }
    }

    /// Begins a wait, which ends when the returned guard is dropped.
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
