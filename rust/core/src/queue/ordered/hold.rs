//! Holds: the workers stand still while somebody looks at the queue.

use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use super::OrderedQueue;
use super::state::{Begun, sleep};

impl<T> OrderedQueue<T> {
    /// Lets no worker begin a further item for as long as the hold lives. Some may be at one: see [`Hold::wait`].
    pub fn hold(&self) -> Hold<&Self, T> {
        Hold::new(self)
    }

    /// Waits up to `timeout` until no worker is at the source or at an item that it may change, on a queue that is held or
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

/// A hold on a queue: no worker begins an item before the last hold is dropped.
///
/// A hold belongs to the caller that has taken it: no other caller can end it.
#[derive(Debug)]
#[must_use = "the workers go on when the hold is dropped"]
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
    /// A hold that keeps whatever owns the queue.
    pub fn new(queue: Q) -> Self {
        queue.lock().holds += 1;
        Self { queue, _of: PhantomData }
    }

    /// Returns the owner of the queue.
    pub fn owner(&self) -> &Q {
        &self.queue
    }

    /// Waits up to `timeout` until the workers stand still, which they do from then on. Returns whether they do.
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
