//! References to the counters of links, and the measurement of waits.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::clock::nanoseconds;
use super::layout::{Flow, Wait};

/// The owner that keeps the memory of a counter mapped.
pub(super) type Keeper = Arc<dyn std::any::Any + Send + Sync>;

/// A [`Flow`] on a board or in the header of a link. It keeps the memory mapped.
#[derive(Debug, Clone)]
pub struct FlowRef {
    flow: NonNull<Flow>,
    _keeper: Keeper,
}

// SAFETY: all access to a flow is atomic, and the keeper can be shared.
unsafe impl Send for FlowRef {}
// SAFETY: as above.
unsafe impl Sync for FlowRef {}

impl FlowRef {
    /// # Safety
    /// The flow is valid as long as `keeper` exists.
    pub(crate) unsafe fn new(flow: *const Flow, keeper: Keeper) -> Self {
        let flow = NonNull::new(flow.cast_mut()).expect("a reference is never null");
        Self { flow, _keeper: keeper }
    }
}

impl Deref for FlowRef {
    type Target = Flow;

    #[inline]
    fn deref(&self) -> &Flow {
        // SAFETY: valid as long as the keeper, which this object holds.
        unsafe { self.flow.as_ref() }
    }
}

/// Measures waits. It is an owned value, so that other fields can be borrowed during the wait.
#[derive(Debug, Clone)]
pub struct WaitRef {
    wait: NonNull<Wait>,
    whom: u32,
    _keeper: Keeper,
}

// SAFETY: all access to a wait is atomic, and the keeper can be shared.
unsafe impl Send for WaitRef {}
// SAFETY: as above.
unsafe impl Sync for WaitRef {}

impl WaitRef {
    /// The waits of a flow.
    pub fn of(flow: &FlowRef) -> Self {
        Self { wait: NonNull::from(&flow.wait), whom: 0, _keeper: Arc::clone(&flow._keeper) }
    }

    /// # Safety
    /// The wait is valid as long as `keeper` exists.
    pub(super) unsafe fn new(wait: &Wait, whom: u32, keeper: Keeper) -> Self {
        Self { wait: NonNull::from(wait), whom, _keeper: keeper }
    }

    /// Begins a wait, which ends when the returned guard is dropped.
    pub fn begin(&self) -> Waiting<'_> {
        // SAFETY: valid as long as the keeper, which this object holds.
        let wait = unsafe { self.wait.as_ref() };
        wait.begin(self.whom, nanoseconds());
        Waiting(wait)
    }
}

/// A wait in progress.
#[derive(Debug)]
pub struct Waiting<'a>(&'a Wait);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.end(nanoseconds());
    }
}
