//! A bounded queue that worker threads fill with results ahead of a consumer thread.
//!
//! A worker reserves a slot *before* it computes an item, so that the queue always has space for the result. The worker
//! either takes an item from the source ([`OrderedQueue::try_reserve`]), or claims an item that the consumer has
//! submitted ([`OrderedQueue::claim_some`]).
//!
//! Crossbeam's channels cannot reserve a slot before its item exists, change their capacity, or list the buffered items
//! for snapshots and garbage collection.
//!
//! Each wake-up is a system call, so the queue wakes up only one worker, which wakes up the next worker if there is
//! more work.

mod answers;
mod claiming;
mod hold;
mod state;

use std::sync::PoisonError;
use std::time::{Duration, Instant};

pub use answers::{Outcome, Pop, Reserve, Slot, View};
use state::{Idle, Pending, Phase, State};

use crate::sync::primitive::{Condvar, Mutex, MutexGuard};

#[derive(Debug)]
pub struct OrderedQueue<T> {
    in_order: bool,
    state: Mutex<State<T>>,
    /// `room` wakes up workers that wait for a slot, and `work` wakes up workers that wait for a submitted item.
    room: Condvar,
    work: Condvar,
    idle: Condvar,
    filled: Condvar,
}

impl<T> OrderedQueue<T> {
    /// If `in_order` is false, the consumer receives results as they become ready. The end marker, or an error of the
    /// source, is always the last result.
    pub fn new(capacity: usize, in_order: bool) -> Self {
        let [room, work, idle, filled] = std::array::from_fn(|_| Condvar::new());
        Self { in_order, state: Mutex::new(State::new(capacity)), room, work, idle, filled }
    }

    /// Locks the state, which is consistent even after a panic, because code under the lock only makes plain
    /// assignments.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn capacity(&self) -> usize {
        self.lock().capacity
    }

    pub fn set_capacity(&self, capacity: usize) {
        let mut state = self.lock();
        state.capacity = capacity.max(1);
        self.notify(state);
    }

    pub fn is_awaited(&self) -> bool {
        let state = self.lock();
        state.consuming.count > 0 && !state.consuming.waking
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_finished(&self) -> bool {
        self.lock().finished
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub fn is_held(&self) -> bool {
        self.lock().holds > 0
    }

    fn wait(
        &self,
        timeout: Duration,
        condition: &Condvar,
        idle: impl Fn(&mut State<T>) -> &mut Idle,
        ready: impl Fn(&State<T>) -> bool,
    ) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while !ready(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            idle(&mut state).count += 1;
            (state, _) = condition.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            idle(&mut state).count -= 1;
            idle(&mut state).waking = false;
        }
        true
    }

    fn notify(&self, mut state: MutexGuard<'_, State<T>>) {
        let over = state.is_over();
        let (has_room, has_work) = (over || state.may_reserve(), over || state.may_claim());
        let (is_filled, is_idle) = (!state.ready.is_empty(), state.busy == 0);
        let (room, work) = (state.reserving.wake(has_room), state.claiming.wake(has_work));
        let (filled, idle) = (state.consuming.wake(is_filled), state.inspecting.wake(is_idle));
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
        if idle {
            self.idle.notify_all();
        }
    }

    /// Reserves the source and a slot, so that the calling worker can compute the next item.
    pub fn try_reserve(&self) -> Reserve {
        let mut state = self.lock();
        if state.is_over() {
            self.notify(state); // only one worker is woken up at a time, so this worker wakes up the next one
            return Reserve::Closed;
        }
        state.try_reserve().map_or(Reserve::TimedOut, Reserve::Granted)
    }

    /// Waits up to `timeout` until the source can be reserved, and returns false after the timeout.
    ///
    /// This method does not reserve the source, because a reservation would block other workers while the caller waits
    /// for the GIL.
    pub fn wait_reservable(&self, timeout: Duration) -> bool {
        let ready = |state: &State<T>| state.is_over() || state.may_reserve();
        self.wait(timeout, &self.room, |state| &mut state.reserving, ready)
    }

    /// Appends an outcome after all other outcomes, even if the queue is full.
    pub fn append(&self, outcome: Outcome<T>) {
        let mut state = self.lock();
        let slot = state.add(Phase::Making, false);
        drop(self.put_locked(&mut state, slot, outcome));
        self.notify(state);
    }

    /// Stores the outcome of a slot, even if the queue is closed, so that no item of the source is lost.
    ///
    /// If the slot belongs to a submitted item, returns the queue's copy of this item, which the caller must drop.
    pub fn put(&self, slot: Slot, outcome: Outcome<T>) -> Option<T> {
        let mut state = self.lock();
        let copy = self.put_locked(&mut state, slot, outcome);
        self.notify(state);
        copy
    }

    /// Stores an outcome like `put`, and reserves the next slot for the same worker, so that no other worker must be
    /// woken up.
    pub fn put_and_reserve(&self, slot: Slot, outcome: Outcome<T>) -> (Option<T>, Option<Slot>) {
        let mut state = self.lock();
        let copy = self.put_locked(&mut state, slot, outcome);
        let next = state.try_reserve();
        self.notify(state);
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

    /// Records that a worker no longer uses the source. The worker's slot stays reserved.
    pub fn leave_source(&self, slot: Slot) {
        let mut state = self.lock();
        if let Some(at) = state.find(slot) {
            state.settle(at);
        }
        self.notify(state);
    }

    /// Releases a slot without an outcome, because an earlier run has already delivered the item.
    pub fn skip(&self, slot: Slot) {
        let mut state = self.lock();
        if let Some(at) = state.find(slot) {
            state.settle(at);
            state.pending.remove(at);
            state.advance();
        }
        self.notify(state);
    }

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
        self.notify(state);
        popped
    }

    /// Waits up to `timeout` until an outcome is ready, and returns false after the timeout.
    ///
    /// The method removes no outcome, because a thread without the GIL must not move references to Python objects.
    pub fn wait_filled(&self, timeout: Duration) -> bool {
        let ready = |state: &State<T>| !state.ready.is_empty() || state.ended || state.closed;
        self.wait(timeout, &self.filled, |state| &mut state.consuming, ready)
    }

    /// Closes the queue, so that workers reserve no more slots, and the consumer receives no more results. Buffered
    /// outcomes stay in the queue until `drain` is called.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        drop(state);
        self.room.notify_all();
        self.work.notify_all();
        self.filled.notify_all();
        self.idle.notify_all();
    }

    pub fn drain(&self) -> Vec<T> {
        let mut state = self.lock();
        state.waiting.clear();
        state.broken = false;
        // After `close`, the end of the results is not reported, because the consumer has not received all results.
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
        self.notify(state);
        ready.into_iter().filter_map(|(_, outcome)| outcome.into_content()).chain(rest).collect()
    }

    /// Passes all buffered outcomes and items to `look` in order, until `look` returns an error. `look` must not call
    /// the queue or run arbitrary code, because the queue's lock is held while `look` runs.
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
    /// `content` if the slot cannot be changed.
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
