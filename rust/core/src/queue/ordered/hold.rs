//! Holds: they pause the workers while a thread inspects the queue.

use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use super::OrderedQueue;
use super::state::{Begun, sleep};

impl<T> OrderedQueue<T> {
    /// Prevents workers from starting items until the hold is dropped. Some may be computing one: see [`Hold::wait`].
    pub fn hold(&self) -> Hold<&Self, T> {
        Hold::new(self)
    }

    /// Waits up to `timeout` until no worker uses the source or an item that it may change. The queue must be held or
    /// closed.
    pub fn wait_still(&self, timeout: Duration) -> bool {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        while state.busy > 0 {
            let Some(slice) = begun.slice() else { return false };
            state = sleep(&self.still, state, slice);
        }
        true
    }
}

/// A hold on a queue: no worker starts an item until the last hold is dropped.
///
/// Only the caller that has created a hold can end it.
#[derive(Debug)]
#[must_use = "the workers continue when the hold is dropped"]
pub struct Hold<Q, T>
where
    Q: Deref<Target = OrderedQueue<T>>,
{
    queue: Q,
    _of: PhantomData<fn(T)>,
}

impl<Q, T> Hold<Q, T>
where
    Q: Deref<Target = OrderedQueue<T>>,
{
    /// Creates a hold that also keeps the owner of the queue alive.
    pub fn new(queue: Q) -> Self {
        queue.lock().holds += 1;
        Self { queue, _of: PhantomData }
    }

    /// The owner of the queue.
    pub fn owner(&self) -> &Q {
        &self.queue
    }

    /// Waits up to `timeout` until all workers are paused, and returns whether they are. They stay paused.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.queue.wait_still(timeout)
    }
}

impl<Q, T> Drop for Hold<Q, T>
where
    Q: Deref<Target = OrderedQueue<T>>,
{
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.holds -= 1;
        self.queue.tell(state);
    }
}
