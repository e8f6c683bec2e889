//! Prevents workers from starting items while a thread inspects the queue.

use std::time::{Duration, Instant};

use super::OrderedQueue;
use super::state::{sleep, time_left};

impl<T> OrderedQueue<T> {
    /// Prevents workers from starting items until `release` has been called as often as `hold`. Workers may still
    /// compute items that they started before (see [`wait_still`](Self::wait_still)).
    pub fn hold(&self) {
        self.lock().holds += 1;
    }

    /// Reverts one call of `hold`.
    pub fn release(&self) {
        let mut state = self.lock();
        state.holds -= 1;
        self.tell(state);
    }

    /// Waits until no worker uses the source, and no worker processes an item that the worker may change. Must be
    /// called while the queue is on hold or closed.
    pub fn wait_still(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while state.busy > 0 {
            let Some(left) = time_left(deadline) else { return false };
            state = sleep(&self.still, state, left);
        }
        true
    }
}
