//! Prevents the worker threads of a queue from starting items while another thread inspects the queue.

use std::time::Duration;

use super::OrderedQueue;

impl<T> OrderedQueue<T> {
    /// Prevents workers from starting items until `release` has been called as often as `hold`. Workers may still
    /// complete items that they started before.
    pub fn hold(&self) {
        self.lock().holds += 1;
    }

    /// Ends one hold. Workers may start items again after the last hold has ended.
    pub fn release(&self) {
        let mut state = self.lock();
        state.holds -= 1;
        self.notify(state);
    }

    /// Waits until no worker uses the source or changes an item, and returns false after the timeout. During this call,
    /// the queue must be on hold or closed.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        self.wait(timeout, &self.idle, |state| &mut state.inspecting, |state| state.busy == 0)
    }
}
