use std::time::{Duration, Instant};

use super::OrderedQueue;
use super::state::{sleep, time_left};

impl<T> OrderedQueue<T> {
    /// Prevents workers from starting items until each call of `hold` was followed by a call of `release`. Workers may
    /// still complete items that they started before.
    pub fn hold(&self) {
        self.lock().holds += 1;
    }

    /// Ends one hold. Workers may start items again after all holds have ended.
    pub fn release(&self) {
        let mut state = self.lock();
        state.holds -= 1;
        self.tell(state);
    }

    /// Waits until no worker uses the source or changes an item, and returns false after the timeout. Must be called
    /// while the queue is on hold or closed.
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
