//! Items that one thread puts into the queue and others claim.

use std::time::Duration;

use super::OrderedQueue;
use super::answers::{Claim, Slot};
use super::state::{Begun, Phase, State, sleep};

impl<T> OrderedQueue<T> {
    /// Sleeps until there is something to claim or `over`, up to `timeout`, and returns whether there is.
    fn wait_for_work(&self, timeout: Duration, over: impl Fn(&State<T>) -> bool) -> bool {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        while !over(&state) && !state.may_claim() {
            let Some(slice) = begun.slice() else { return false };
            state.claiming.count += 1;
            state = sleep(&self.work, state, slice);
            state.claiming.count -= 1;
            state.claiming.waking = false;
        }
        true
    }

    /// Waits up to `timeout` until [`try_claim`](Self::try_claim) may have something to say, and returns whether it may.
    ///
    /// Takes nothing out: if the items are Python objects, a thread without the GIL must not move references.
    pub fn wait_claimable(&self, timeout: Duration) -> bool {
        self.wait_for_work(timeout, |state| state.closed)
    }

    /// The same for [`claim_some`](Self::claim_some).
    pub fn wait_claimable_some(&self, timeout: Duration) -> bool {
        self.wait_for_work(timeout, State::is_claimed)
    }

    /// The first submitted item that no worker has, if there is one. To be called by a worker.
    ///
    /// `copy` is called under the lock: it must not call back, nor run code that might. It copies the item, and says whether
    /// the worker may change it, so that a hold has to wait.
    pub fn try_claim(&self, copy: impl FnOnce(&T) -> (T, bool)) -> Claim<T> {
        let mut state = self.lock();
        if state.closed {
            self.tell(state);
            return Claim::Closed;
        }
        if state.holds > 0 {
            return Claim::TimedOut;
        }
        let Some(slot) = state.waiting.pop_front() else { return Claim::TimedOut };
        let Some(at) = state.find(slot) else { return Claim::TimedOut };
        let phase = std::mem::replace(&mut state.pending[at].phase, Phase::Making);
        let Phase::Waiting(item) = phase else { unreachable!("a slot waits until it is claimed") };
        let (given, busy) = copy(&item);
        state.pending[at].phase = Phase::Running(item);
        state.pending[at].busy = busy;
        state.busy += usize::from(busy);
        self.tell(state);
        Claim::Given(slot, given)
    }

    /// Leaves the source, and hands its item to whichever worker claims it. Reserves the next slot if that needs no wait.
    /// To be called by the worker at the source.
    pub fn hand_over(&self, slot: Slot, item: T) -> Option<Slot> {
        let mut state = self.lock();
        let Some(at) = state.find(slot) else { unreachable!("a slot is there until its outcome is put down") };
        state.settle(at);
        state.pending[at].phase = Phase::Waiting(item);
        state.waiting.push_back(slot);
        let mut next = None;
        if !state.is_over() && state.may_reserve() {
            state.source_taken = true;
            next = Some(state.add(Phase::Making, true));
        }
        self.tell(state);
        next
    }

    /// Items that were handed over, in their order: none if there are none at the moment, None if no more will come.
    ///
    /// One of `sharers` workers gets its share of what waits, `most` at most. Items come together only if each of them
    /// `joins`, which is called under the lock and must not call back.
    pub fn claim_some(&self, most: usize, sharers: usize, joins: impl Fn(&T) -> bool) -> Option<Vec<(Slot, T)>> {
        let mut state = self.lock();
        if state.is_claimed() {
            self.tell(state);
            return None;
        }
        let mut claimed = Vec::new();
        if state.holds == 0 {
            let most = most.min(state.waiting.len().div_ceil(sharers.max(1)));
            while let Some(&slot) = state.waiting.front() {
                let Some(at) = state.find(slot) else { unreachable!("what waits has a slot") };
                let Phase::Waiting(item) = &state.pending[at].phase else { unreachable!("it waits") };
                let alone = !joins(item);
                if !claimed.is_empty() && (alone || claimed.len() >= most) {
                    break;
                }
                state.waiting.pop_front();
                if let Phase::Waiting(item) = std::mem::replace(&mut state.pending[at].phase, Phase::Making) {
                    claimed.push((slot, item));
                }
                if alone {
                    break;
                }
            }
        }
        self.tell(state);
        Some(claimed)
    }

    /// Gives items back that were claimed, to be claimed again before all others. Returns what nobody wants any more.
    pub fn hand_back(&self, items: Vec<(Slot, T)>) -> Vec<T> {
        let mut state = self.lock();
        if state.closed {
            return items.into_iter().map(|(_, item)| item).collect();
        }
        for (slot, item) in items.into_iter().rev() {
            let Some(at) = state.find(slot) else { unreachable!("a slot is there until its outcome is put down") };
            state.pending[at].phase = Phase::Waiting(item);
            state.waiting.push_front(slot);
        }
        self.tell(state);
        Vec::new()
    }

    /// Adds an item for the workers, behind all others and over the capacity if need be. To be called by the consumer.
    pub fn submit(&self, item: T) {
        let mut state = self.lock();
        let slot = state.add(Phase::Waiting(item), false);
        state.waiting.push_back(slot);
        self.tell(state);
    }
}
