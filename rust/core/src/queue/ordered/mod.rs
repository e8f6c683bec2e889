//! The bounded queue between worker threads that read ahead and the thread that consumes their results.
//!
//! A worker reserves a slot *before* it computes an item, so that the queue always has space for the result. The worker
//! either takes an item from the source, which only one worker at a time may use ([`OrderedQueue::try_reserve`]), or
//! claims an item that the consumer has submitted ([`OrderedQueue::claim_some`]).
//!
//! Crossbeam's channels are not used, because they cannot reserve a slot before its item exists, change their capacity,
//! or list the buffered items for snapshots and for Python's garbage collector.
//!
//! One lock protects all state. A thread holds the lock for a few instructions only, and never while contents are
//! dropped. Wake-ups are system calls, so the queue only wakes up sleeping threads, and each worker wakes up the next
//! worker.

mod answers;
mod claiming;
mod hold;
mod state;

use std::sync::PoisonError;
use std::time::{Duration, Instant};

pub use answers::{Outcome, Pop, Reserve, Slot, View};
use state::{Pending, Phase, State, sleep, time_left};

use crate::sync::primitive::{Condvar, Mutex, MutexGuard};

#[derive(Debug)]
pub struct OrderedQueue<T> {
    in_order: bool,
    state: Mutex<State<T>>,
    /// `room` wakes up workers that wait for a slot, and `work` wakes up workers that wait for a submitted item.
    room: Condvar,
    work: Condvar,
    still: Condvar,
    filled: Condvar,
}

impl<T> OrderedQueue<T> {
    /// Creates an empty queue with `capacity` slots, or with one slot if `capacity` is 0. If `in_order` is false, the
    /// consumer receives results as they become ready, but the end and an error of the source always last.
    pub fn new(capacity: usize, in_order: bool) -> Self {
        let [room, work, still, filled] = std::array::from_fn(|_| Condvar::new());
        Self { in_order, state: Mutex::new(State::new(capacity)), room, work, still, filled }
    }

    /// Locks the state. The state is consistent even after a panic, because code under the lock only makes plain
    /// assignments.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn capacity(&self) -> usize {
        self.lock().capacity
    }

    /// Sets the maximum number of slots. The value 0 is treated as 1.
    pub fn set_capacity(&self, capacity: usize) {
        let mut state = self.lock();
        state.capacity = capacity.max(1);
        self.tell(state);
    }

    /// Returns whether the consumer is waiting for a result.
    pub fn is_awaited(&self) -> bool {
        let state = self.lock();
        state.hungry > 0 && !state.fed
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether a worker has stored the end of the results in the queue.
    pub fn is_finished(&self) -> bool {
        self.lock().finished
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub fn is_held(&self) -> bool {
        self.lock().holds > 0
    }

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

    /// Reserves the source and a slot for the calling worker, which then computes the next item of the source.
    pub fn try_reserve(&self) -> Reserve {
        let mut state = self.lock();
        if state.is_over() {
            self.tell(state); // only one worker is woken up at a time, so this worker wakes up the next one
            return Reserve::Closed;
        }
        state.try_reserve().map_or(Reserve::TimedOut, Reserve::Granted)
    }

    /// Waits up to `timeout` until [`try_reserve`](Self::try_reserve) may have a result. Returns false after the
    /// timeout. The method does not reserve the source, because other workers would then wait while this worker waits
    /// for the GIL.
    pub fn wait_reservable(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !state.is_over() && !state.may_reserve() {
            let Some(left) = time_left(deadline) else { return false };
            state.reserving.count += 1;
            state = sleep(&self.room, state, left);
            state.reserving.count -= 1;
            state.reserving.waking = false;
        }
        true
    }

    /// Appends an outcome after all other outcomes, even if the queue is full.
    pub fn append(&self, outcome: Outcome<T>) {
        let mut state = self.lock();
        let slot = state.add(Phase::Making, false);
        drop(self.put_locked(&mut state, slot, outcome));
        self.tell(state);
    }

    /// Stores the outcome of a slot, and releases the source if the slot's worker uses it. The outcome is stored even
    /// if the queue is closed, so that no item of the source is lost. If the slot contains a submitted item, returns
    /// the queue's copy of this item, which the caller must drop.
    pub fn put(&self, slot: Slot, outcome: Outcome<T>) -> Option<T> {
        let mut state = self.lock();
        let copy = self.put_locked(&mut state, slot, outcome);
        self.tell(state);
        copy
    }

    /// Stores an outcome like `put`, and reserves the next slot if one is free. The reservation avoids waking up
    /// another worker.
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

    /// Records that the worker of a slot no longer uses the source, so that `wait_still` no longer waits for the
    /// worker. The slot stays reserved until the worker stores an outcome.
    pub fn leave_source(&self, slot: Slot) {
        let mut state = self.lock();
        if let Some(at) = state.find(slot) {
            state.settle(at);
        }
        self.tell(state);
    }

    /// Releases a slot without an outcome, because a resumed worker drops an item that was already delivered.
    pub fn skip(&self, slot: Slot) {
        let mut state = self.lock();
        if let Some(at) = state.find(slot) {
            state.settle(at);
            state.pending.remove(at);
            state.advance();
        }
        self.tell(state);
    }

    /// Returns the next outcome if the outcome is ready.
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
                Pop::Error(error)
            }
            Some(Outcome::End(error)) => {
                state.ended = true;
                error.map_or(Pop::Ended, Pop::Error)
            }
        };
        self.tell(state);
        popped
    }

    /// Waits up to `timeout` until [`try_pop`](Self::try_pop) can return an outcome. Returns false after the timeout.
    /// The method removes no outcome, because the caller has released the GIL and must not move references to Python
    /// objects.
    pub fn wait_filled(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while state.ready.is_empty() && !state.ended && !state.closed {
            let Some(left) = time_left(deadline) else { return false };
            state.hungry += 1;
            state = sleep(&self.filled, state, left);
            state.hungry -= 1;
            state.fed = false;
        }
        true
    }

    /// Closes the queue, so that the consumer gets no more results and workers get no more slots. Buffered outcomes
    /// stay in the queue until they are drained, so that [`try_for_each`](Self::try_for_each) can show them.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        drop(state);
        self.room.notify_all();
        self.work.notify_all();
        self.filled.notify_all();
        self.still.notify_all();
    }

    /// Removes and returns all outcomes, all submitted items, and the queue's copies of items that workers are
    /// processing.
    pub fn drain(&self) -> Vec<T> {
        let mut state = self.lock();
        state.waiting.clear();
        state.broken = false;
        // A closed queue does not report the end to the consumer, because the drained results are missing.
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

    /// Passes all buffered outcomes and items to `look` in order, until `look` returns an error. `look` is called under
    /// the lock, so it must not call the queue or run arbitrary code.
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

    /// Replaces the content of a slot, unless a worker is processing the slot. Returns the replaced content, or
    /// `content` if it was not stored. The caller must drop the result.
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
