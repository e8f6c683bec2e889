//! Lets one thread submit items to an ordered queue, and lets worker threads claim and process these items.

use std::time::Duration;

use super::OrderedQueue;
use super::answers::{Outcome, Slot};
use super::state::{Phase, State};

impl<T> OrderedQueue<T> {
    /// Waits up to `timeout` until an item can be claimed, and returns false after the timeout.
    ///
    /// The method claims no items, because a thread without the GIL must not move references to Python objects.
    pub fn wait_claimable(&self, timeout: Duration) -> bool {
        let ready = |state: &State<T>| state.is_claimed() || state.may_claim();
        self.wait(timeout, &self.work, |state| &mut state.claiming, ready)
    }

    /// Submits `item` for other workers, and returns the next slot if the queue has a free slot. Only the worker that
    /// reads the source may call this method.
    pub fn hand_over(&self, slot: Slot, item: T) -> Option<Slot> {
        let mut state = self.lock();
        let Some(at) = state.find(slot) else { unreachable!("a slot exists until its outcome is put") };
        state.settle(at);
        state.pending[at].phase = Phase::Waiting(item);
        state.waiting.push_back(slot);
        let next = state.try_reserve();
        self.notify(state);
        next
    }

    /// Claims submitted items in order. Returns empty lists if no item is available now, or None after the last item.
    ///
    /// A call claims the number of waiting items divided by `sharers`, but at least `least` and at most `most` items.
    /// If `joins` returns false for an item, the call claims this item without any other item.
    ///
    /// `take` copies or moves the data that a worker needs out of an item. `take` returns this data, and whether the
    /// worker may change the item. `joins` and `take` must not call the queue, because the queue's lock is held while
    /// they run.
    pub fn claim_some<X>(
        &self,
        (least, most): (usize, usize),
        sharers: usize,
        joins: impl Fn(&T) -> bool,
        mut take: impl FnMut(&mut T) -> (X, bool),
    ) -> Option<(Vec<Slot>, Vec<X>)> {
        let mut state = self.lock();
        if state.is_claimed() {
            self.notify(state);
            return None;
        }
        let (mut slots, mut taken) = (Vec::new(), Vec::new());
        if state.holds == 0 {
            let most = most.min(least.max(state.waiting.len().div_ceil(sharers.max(1))));
            while let Some(&slot) = state.waiting.front() {
                let Some(at) = state.find(slot) else { unreachable!("an unclaimed item has a slot") };
                let phase = &mut state.pending[at].phase;
                let Phase::Waiting(item) = phase else { unreachable!("it waits") };
                let alone = !joins(item);
                if !slots.is_empty() && (alone || slots.len() >= most) {
                    break;
                }
                let (part, busy) = take(item);
                taken.push(part);
                if let Phase::Waiting(rest) = std::mem::replace(phase, Phase::Making) {
                    *phase = Phase::Running(rest);
                }
                state.pending[at].busy = busy;
                state.busy += usize::from(busy);
                state.waiting.pop_front();
                slots.push(slot);
                if alone {
                    break;
                }
            }
        }
        self.notify(state);
        Some((slots, taken))
    }

    /// Stores an outcome for each claimed item. `complete` computes the outcome from the data that stayed in the queue
    /// and the data that the worker passes.
    ///
    /// Returns the passed data of items that the queue has dropped, so that the caller drops these data after the
    /// queue's lock is released.
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
        self.notify(state);
        unwanted
    }

    /// Puts claimed items back at the front of the queue. `restore` moves the data that `claim_some` took into an item.
    ///
    /// Returns the passed data of items that the queue has dropped, so that the caller drops these data after the
    /// queue's lock is released.
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
        self.notify(state);
        unwanted
    }

    /// Adds an item to the end of the queue, even if the queue is full. Only the consumer may call this method.
    pub fn submit(&self, item: T) {
        let mut state = self.lock();
        let slot = state.add(Phase::Waiting(item), false);
        state.waiting.push_back(slot);
        self.notify(state);
    }
}
