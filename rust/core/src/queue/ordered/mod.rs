//! The bounded queue between threads that read ahead and the thread that consumes their results.
//!
//! Several worker threads and one consumer thread of a process share an [`OrderedQueue`]. A worker gets a slot *before*
//! it computes an item, so there is always space for the item. A worker gets an item in one of two ways:
//!
//! - [`OrderedQueue::reserve`]: the worker has exclusive use of the source until [`OrderedQueue::leave_source`], or
//!   until it puts the result, and takes the item from the source.
//! - [`OrderedQueue::try_claim`]: the consumer has submitted an item, and the worker takes it.
//!
//! Alternatively, one worker reserves slots and submits what it takes from the source ([`OrderedQueue::hand_over`]),
//! and other workers claim several of these items at once ([`OrderedQueue::claim_some`]).
//!
//! The worker then puts the outcome of the slot. Results are returned in the order of the slots, or as they become
//! ready. A thread that holds the queue (see [`OrderedQueue::hold`]) sees every item. Any number of threads can hold it
//! independently.
//!
//! The channels and the `ArrayQueue` of crossbeam do not suffice for three reasons. The buffered items must be visible
//! for states and for Python's garbage collector. A slot must be reserved before its item exists. The capacity changes.
//!
//! One lock guards all state. The lock is held for a few instructions only, and never during waits or while foreign
//! code runs. Contents are dropped after the lock is released. Memory depends on the buffered items, not on the
//! capacity. Each side is woken only if it sleeps, because every wake-up is a system call. If several workers sleep,
//! one is woken, and this worker wakes the next one.
//!
//! All waits are bounded: each returns after its timeout, and sleeps at most 100 ms at a time.

mod answers;
mod claiming;
mod hold;
mod state;

use std::sync::PoisonError;
use std::time::Duration;

pub use answers::{Claim, Outcome, Pop, Reserve, Slot, View};
use state::{Begun, Pending, Phase, State, sleep};

use crate::sync::primitive::{Condvar, Mutex, MutexGuard};

/// A bounded queue between worker threads and one consumer thread. See the module for its rules.
#[derive(Debug)]
pub struct OrderedQueue<T> {
    in_order: bool,
    state: Mutex<State<T>>,
    /// Notified for workers that wait to reserve, and for workers that wait to claim.
    room: Condvar,
    work: Condvar,
    still: Condvar,
    filled: Condvar,
}

impl<T> OrderedQueue<T> {
    /// Creates an empty queue with up to `capacity` slots, at least one.
    ///
    /// If `in_order` is false, results are returned as they become ready. The end, and an error of the source, are last
    /// in any case.
    pub fn new(capacity: usize, in_order: bool) -> Self {
        let [room, work, still, filled] = std::array::from_fn(|_| Condvar::new());
        Self { in_order, state: Mutex::new(State::new(capacity)), room, work, still, filled }
    }

    /// If a thread panicked while it held the lock, the data is still consistent, because the lock only spans plain
    /// assignments.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The maximum number of slots. Restored and submitted items may exceed it.
    pub fn capacity(&self) -> usize {
        self.lock().capacity
    }

    /// Sets the maximum number of slots, at least one.
    pub fn set_capacity(&self, capacity: usize) {
        let mut state = self.lock();
        state.capacity = capacity.max(1);
        self.tell(state);
    }

    /// Returns whether the consumer is waiting.
    pub fn is_awaited(&self) -> bool {
        let state = self.lock();
        state.hungry > 0 && !state.fed
    }

    /// The number of used slots. An error or the end counts as one.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether the end was put.
    pub fn is_finished(&self) -> bool {
        self.lock().finished
    }

    /// Returns whether the queue was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Returns whether the queue is held.
    pub fn is_held(&self) -> bool {
        self.lock().holds > 0
    }

    /// Wakes the threads that can continue: a worker, the consumer, and holders.
    fn tell(&self, mut state: MutexGuard<'_, State<T>>) {
        let over = state.is_over();
        let room = over || state.may_reserve();
        let room = state.reserving.wake(room);
        let work = over || state.may_claim();
        let work = state.claiming.wake(work);
        let filled = state.hungry > 0 && !state.fed && !state.ready.is_empty();
        state.fed |= filled;
        let still = state.busy == 0 && (state.holds > 0 || state.closed);
        drop(state);
        if room {
            self.room.notify_one();
        }
        if work {
            self.work.notify_one();
        }
        if filled {
            self.filled.notify_all();
        }
        if still {
            self.still.notify_all();
        }
    }

    /// Reserves the source and a slot for its next item, if both are available. Called by workers.
    pub fn try_reserve(&self) -> Reserve {
        let mut state = self.lock();
        if state.is_over() {
            self.tell(state); // one worker is woken at a time, and wakes the next one
            return Reserve::Closed;
        }
        state.try_reserve().map_or(Reserve::TimedOut, Reserve::Granted)
    }

    /// Waits up to `timeout` until [`try_reserve`](Self::try_reserve) may return something else than `TimedOut`, and
    /// returns whether it may.
    ///
    /// This function does not reserve the source. A worker that waits for the GIL next would otherwise block a worker
    /// that has the GIL.
    pub fn wait_reservable(&self, timeout: Duration) -> bool {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        while !state.is_over() && !state.may_reserve() {
            let Some(slice) = begun.slice() else { return false };
            state.reserving.count += 1;
            state = sleep(&self.room, state, slice);
            state.reserving.count -= 1;
            state.reserving.waking = false;
        }
        true
    }

    /// Adds an existing outcome at the end, even if this exceeds the capacity.
    pub fn append(&self, outcome: Outcome<T>) {
        let mut state = self.lock();
        let slot = state.add(Phase::Making, false);
        drop(self.put_locked(&mut state, slot, outcome));
        self.tell(state);
    }

    /// Puts the outcome of a slot. If its worker used the source, the worker has left it then.
    ///
    /// The outcome is kept even if the queue was closed in the meantime, because the source has advanced. Returns the
    /// copy of a submitted item for dropping.
    pub fn put(&self, slot: Slot, outcome: Outcome<T>) -> Option<T> {
        let mut state = self.lock();
        let copy = self.put_locked(&mut state, slot, outcome);
        self.tell(state);
        copy
    }

    /// Like `put`, and also reserves the next slot if that is possible without waiting, so that no other worker has to
    /// be woken.
    pub fn put_and_reserve(&self, slot: Slot, outcome: Outcome<T>) -> (Option<T>, Option<Slot>) {
        let mut state = self.lock();
        let copy = self.put_locked(&mut state, slot, outcome);
        let next = state.try_reserve();
        self.tell(state);
        (copy, next)
    }

    fn put_locked(&self, state: &mut State<T>, slot: Slot, outcome: Outcome<T>) -> Option<T> {
        let Some(at) = state.find(slot) else { unreachable!("a slot exists until its outcome is put") };
        let phase = self.put_down(state, at, outcome);
        state.advance();
        match phase {
            Phase::Running(item) => Some(item),
            _ => None,
        }
    }

    /// Stores the outcome of a slot, and returns the previous state of the slot. The outcome may be ready for the
    /// consumer then.
    fn put_down(&self, state: &mut State<T>, at: usize, outcome: Outcome<T>) -> Phase<T> {
        state.settle(at);
        state.finished |= matches!(outcome, Outcome::End(_));
        state.broken |= matches!(outcome, Outcome::Break(_));
        let is_last = matches!(outcome, Outcome::End(_) | Outcome::Break(_));
        if self.in_order || is_last {
            return std::mem::replace(&mut state.pending[at].phase, Phase::Done(outcome));
        }
        let slot = state.pending[at].number;
        state.ready.push_back((slot, outcome));
        state.pending.remove(at).map_or(Phase::Making, |one| one.phase)
    }

    /// Records that the worker of a slot has left the source and will put the outcome later.
    ///
    /// The slot stays reserved, and holds do not wait for it.
    pub fn leave_source(&self, slot: Slot) {
        let mut state = self.lock();
        if let Some(at) = state.find(slot) {
            state.settle(at);
        }
        self.tell(state);
    }

    /// Releases a slot without an outcome.
    pub fn skip(&self, slot: Slot) {
        let mut state = self.lock();
        if let Some(at) = state.find(slot) {
            state.settle(at);
            state.pending.remove(at);
            state.advance();
        }
        self.tell(state);
    }

    /// Returns the next outcome if it is available. Called by the consumer.
    pub fn try_pop(&self) -> Pop<T> {
        let mut state = self.lock();
        if state.ended {
            return Pop::Ended;
        }
        if state.closed {
            return Pop::Closed;
        }
        let popped = match state.ready.pop_front().map(|(_, outcome)| outcome) {
            None => return Pop::TimedOut,
            Some(Outcome::Item(item)) => Pop::Item(item),
            Some(Outcome::Error(error)) => Pop::Error(error),
            Some(Outcome::Break(error)) => {
                state.broken = false;
                Pop::Broken(error)
            }
            Some(Outcome::End(error)) => {
                state.ended = true;
                error.map_or(Pop::Ended, Pop::Broken)
            }
        };
        self.tell(state);
        popped
    }

    /// Waits up to `timeout` until [`try_pop`](Self::try_pop) has a result, and returns whether it has.
    ///
    /// This function removes no item, for the same reason as [`wait_claimable`](Self::wait_claimable).
    pub fn wait_filled(&self, timeout: Duration) -> bool {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        while state.ready.is_empty() && !state.ended && !state.closed {
            let Some(slice) = begun.slice() else { return false };
            state.hungry += 1;
            state = sleep(&self.filled, state, slice);
            state.hungry -= 1;
            state.fed = false;
        }
        true
    }

    /// Ends the stream from either side: the consumer receives no more results, and workers no more slots.
    ///
    /// Buffered outcomes stay until they are drained, so that [`for_each`](Self::for_each) can return them.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        drop(state);
        self.room.notify_all();
        self.work.notify_all();
        self.filled.notify_all();
        self.still.notify_all();
    }

    /// Removes all outcomes, submitted items, and copies of items that workers are computing. The slots of these
    /// workers stay reserved.
    pub fn drain(&self) -> Vec<T> {
        let mut state = self.lock();
        state.waiting.clear();
        state.broken = false;
        // Draining also removes the end of the results. The consumer of a closed queue has not received all results, so
        // it must not see an end.
        state.ended |= state.finished && !state.closed;
        let ready = std::mem::take(&mut state.ready);
        let mut rest = Vec::new();
        for Pending { number, phase, busy } in std::mem::take(&mut state.pending) {
            let at_work = matches!(phase, Phase::Making | Phase::Running(_));
            match phase {
                Phase::Making => {}
                Phase::Waiting(item) | Phase::Running(item) => rest.push(item),
                Phase::Done(outcome) => rest.extend(outcome.into_content()),
            }
            if at_work {
                state.pending.push_back(Pending { number, phase: Phase::Making, busy });
            }
        }
        self.tell(state);
        ready.into_iter().filter_map(|(_, outcome)| outcome.into_content()).chain(rest).collect()
    }

    /// Shows all buffered outcomes and items in order, until `look` returns an error. To see the exact position of the
    /// source, the queue must be held or closed.
    ///
    /// `look` is called under the lock, so it must neither call this queue nor run arbitrary code.
    pub fn try_for_each<X>(&self, mut look: impl FnMut(Slot, View<'_, T>) -> Result<(), X>) -> Result<(), X> {
        let state = self.lock();
        for (slot, outcome) in &state.ready {
            outcome.view().map_or(Ok(()), |view| look(*slot, view))?;
        }
        for one in &state.pending {
            let view = match &one.phase {
                Phase::Making => None,
                Phase::Waiting(item) => Some(View::Waiting(item)),
                Phase::Running(item) => Some(View::Running(item)),
                Phase::Done(outcome) => outcome.view(),
            };
            view.map_or(Ok(()), |view| look(one.number, view))?;
        }
        Ok(())
    }

    /// Shows all buffered outcomes and items, like [`try_for_each`](Self::try_for_each).
    pub fn for_each(&self, mut look: impl FnMut(Slot, View<'_, T>)) {
        let Ok(()) = self.try_for_each(|slot, view| -> Result<(), std::convert::Infallible> {
            look(slot, view);
            Ok(())
        });
    }

    /// Replaces the content of a slot that no worker works on. Returns the object to drop: the previous content, or
    /// `content` if the slot does not exist.
    pub fn exchange(&self, slot: Slot, mut content: T) -> T {
        let mut state = self.lock();
        let pending = state.find(slot).and_then(|at| match &mut state.pending[at].phase {
            Phase::Waiting(item) => Some(item),
            Phase::Done(outcome) => outcome.content_mut(),
            Phase::Making | Phase::Running(_) => None,
        });
        if let Some(there) = pending {
            std::mem::swap(there, &mut content);
        } else if let Some((_, outcome)) = state.ready.iter_mut().find(|(number, _)| *number == slot)
            && let Some(there) = outcome.content_mut()
        {
            std::mem::swap(there, &mut content);
        }
        content
    }
}
