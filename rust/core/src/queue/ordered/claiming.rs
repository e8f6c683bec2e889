//! Items that one thread puts into the queue and others claim.

use std::time::Duration;

use super::OrderedQueue;
use super::answers::{Claim, Outcome, Slot};
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
        let next = state.try_reserve();
        self.tell(state);
        next
    }

    /// Items that were handed over, in their order, by their slots: none if there are none at the moment, None if no more
    /// will come.
    ///
    /// One of `sharers` workers gets its share of what waits, or the `least` that is worth a way if that is more, and `most`
    /// at most. Items come together only if each of them `joins`. `take` takes out of an item the part that the worker needs;
    /// the rest stays in the slot, for [`put_some`] or [`hand_back`]. Both are called under the lock and must not call back.
    ///
    /// [`put_some`]: Self::put_some
    /// [`hand_back`]: Self::hand_back
    pub fn claim_some<X>(
        &self,
        (least, most): (usize, usize),
        sharers: usize,
        joins: impl Fn(&T) -> bool,
        mut take: impl FnMut(&mut T) -> X,
    ) -> Option<(Vec<Slot>, Vec<X>)> {
        let mut state = self.lock();
        if state.is_claimed() {
            self.tell(state);
            return None;
        }
        let (mut slots, mut taken) = (Vec::new(), Vec::new());
        if state.holds == 0 {
            let most = most.min(least.max(state.waiting.len().div_ceil(sharers.max(1))));
            while let Some(&slot) = state.waiting.front() {
                let Some(at) = state.find(slot) else { unreachable!("what waits has a slot") };
                let phase = &mut state.pending[at].phase;
                let Phase::Waiting(item) = phase else { unreachable!("it waits") };
                let alone = !joins(item);
                if !slots.is_empty() && (alone || slots.len() >= most) {
                    break;
                }
                taken.push(take(item));
                if let Phase::Waiting(rest) = std::mem::replace(phase, Phase::Making) {
                    *phase = Phase::Running(rest);
                }
                state.waiting.pop_front();
                slots.push(slot);
                if alone {
                    break;
                }
            }
        }
        self.tell(state);
        Some((slots, taken))
    }

    /// Puts down the outcomes of items that were claimed, each made of what stayed in the slot and a part that is new.
    /// Returns new parts that nobody wants any more.
    ///
    /// `complete` is called under the lock and must not call back.
    pub fn put_some<X>(
        &self,
        parts: impl IntoIterator<Item = (Slot, X)>,
        complete: impl Fn(T, X) -> Outcome<T>,
    ) -> Vec<X> {
        let mut state = self.lock();
        let mut unwanted = Vec::new();
        for (slot, part) in parts {
            match state.take_running(slot) {
                Some((at, rest)) => drop(self.put_down(&mut state, at, complete(rest, part))),
                None => unwanted.push(part),
            }
        }
        state.advance();
        self.tell(state);
        unwanted
    }

    /// Gives items back that were claimed, to be claimed again before all others: `restore` puts a part that was taken
    /// back to its rest. Returns parts that nobody wants any more.
    pub fn hand_back<X>(&self, parts: Vec<(Slot, X)>, restore: impl Fn(&mut T, X)) -> Vec<X> {
        let mut state = self.lock();
        let mut unwanted = Vec::new();
        for (slot, part) in parts.into_iter().rev() {
            match state.take_running(slot) {
                Some((at, mut item)) => {
                    restore(&mut item, part);
                    state.pending[at].phase = Phase::Waiting(item);
                    state.waiting.push_front(slot);
                }
                None => unwanted.push(part),
            }
        }
        self.tell(state);
        unwanted
    }

    /// Adds an item for the workers, behind all others and over the capacity if need be. To be called by the consumer.
    pub fn submit(&self, item: T) {
        let mut state = self.lock();
        let slot = state.add(Phase::Waiting(item), false);
        state.waiting.push_back(slot);
        self.tell(state);
    }
}
