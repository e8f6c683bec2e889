//! The bounded queue between the threads that read ahead and the thread that consumes their results.
//!
//! Role: n worker threads and one consumer thread of the same process share an [`OrderedQueue`]. A worker gets a slot
//! *before* it makes an item, so that it never holds an item that found no place. It gets one in either of two ways:
//!
//! - [`OrderedQueue::reserve`]: the worker has the source for itself until [`OrderedQueue::leave_source`] or until it
//!   puts its result down, and takes the item from there;
//! - [`OrderedQueue::try_claim`]: the consumer has submitted an item, which the worker takes.
//!
//! Or one worker reserves and hands over what it takes ([`OrderedQueue::hand_over`]), and others claim several such items
//! at a time ([`OrderedQueue::claim_some`]).
//!
//! Then the worker puts down the outcome of the slot. Results come in the order of the slots, or as they are ready.
//! A thread that holds the queue (see [`OrderedQueue::hold`]) sees every item that was made. Any number of threads may
//! hold it, each for itself.
//!
//! A channel of crossbeam's cannot do this, nor its `ArrayQueue`: a state, and Python's collector of garbage, look at what
//! is buffered without taking it, a slot belongs to its worker before there is an item, and the capacity changes.
//!
//! One lock guards everything, and is held for a few instructions only, never while waiting or while foreign code runs:
//! contents are dropped outside. Memory follows what is buffered, whatever the capacity. Each side is woken only if it
//! sleeps, as each wake-up is a system call; of several workers one is woken, which wakes the next.
//!
//! No wait is unbounded: each returns after the slice that it was given, at most [`LONGEST_SLICE`] if it loops.

mod answers;
mod claiming;
mod hold;
mod state;

use std::sync::PoisonError;
use std::time::Duration;

pub use answers::{Claim, Outcome, Pop, Reserve, Slot, View};
pub use hold::Hold;
pub use state::LONGEST_SLICE;
use state::{Begun, Pending, Phase, State, sleep};

use crate::sync::primitive::{Condvar, Mutex, MutexGuard};

/// A bounded queue between worker threads and one consumer thread. See the module for its rules.
#[derive(Debug)]
pub struct OrderedQueue<T> {
    in_order: bool,
    state: Mutex<State<T>>,
    /// Told of what workers wait for that reserve, and of what those wait for that claim.
    room: Condvar,
    work: Condvar,
    /// Told of what holders wait for.
    still: Condvar,
    /// Told of what the consumer waits for.
    filled: Condvar,
}

impl<T> OrderedQueue<T> {
    /// An empty queue with up to `capacity` slots; 0 counts as 1, since an item must lie somewhere.
    ///
    /// If not `in_order`, results come as they are ready; the end, and an error of the source, come last all the same.
    pub fn new(capacity: usize, in_order: bool) -> Self {
        let [room, work, still, filled] = std::array::from_fn(|_| Condvar::new());
        Self { in_order, state: Mutex::new(State::new(capacity)), room, work, still, filled }
    }

    /// A thread that panicked held the lock between plain assignments, so the data is whole.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Most slots at a time; restored and submitted ones may be more.
    pub fn capacity(&self) -> usize {
        self.lock().capacity
    }

    /// Changes how many slots there are at a time; 0 counts as 1.
    pub fn set_capacity(&self, capacity: usize) {
        let mut state = self.lock();
        state.capacity = capacity.max(1);
        self.tell(state);
    }

    /// Whether, since the last call, a worker has found no room at one moment and the consumer nothing at a later one:
    /// with more slots it would have found something.
    pub fn has_lacked(&self) -> bool {
        std::mem::take(&mut self.lock().lacked)
    }

    /// Whether the consumer waits at this moment.
    pub fn is_awaited(&self) -> bool {
        let state = self.lock();
        state.hungry > 0 && !state.fed
    }

    /// Number of slots that are taken; an error or the end counts as one.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no slot is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the end was put down.
    pub fn is_finished(&self) -> bool {
        self.lock().finished
    }

    /// Whether the queue was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether somebody holds the queue.
    pub fn is_held(&self) -> bool {
        self.lock().holds > 0
    }

    /// Wakes those who have something to do now: a worker, the consumer, and holders.
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

    /// Waits up to `timeout` for the source, and for a slot for its next item. To be called by a worker.
    pub fn reserve(&self, timeout: Duration) -> Reserve {
        let begun = Begun::now(timeout);
        loop {
            let answer = self.try_reserve();
            if answer != Reserve::TimedOut {
                return answer;
            }
            let Some(left) = begun.left() else { return answer };
            self.wait_reservable(left);
        }
    }

    /// The source, and a slot for its next item, if both are to be had. To be called by a worker.
    pub fn try_reserve(&self) -> Reserve {
        let mut state = self.lock();
        if state.is_over() {
            self.tell(state); // one worker is woken at a time, so each wakes the next
            return Reserve::Closed;
        }
        state.try_reserve().map_or(Reserve::TimedOut, Reserve::Granted)
    }

    /// Waits up to `timeout` until [`try_reserve`](Self::try_reserve) may have something to say, and returns whether it may.
    ///
    /// Takes nothing: a worker that waits for the GIL next would keep the source from one that has it.
    pub fn wait_reservable(&self, timeout: Duration) -> bool {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        while !state.is_over() && !state.may_reserve() {
            let Some(slice) = begun.slice() else { return false };
            state.was_full |= state.holds == 0 && !state.has_room();
            state.reserving.count += 1;
            state = sleep(&self.room, state, slice);
            state.reserving.count -= 1;
            state.reserving.waking = false;
        }
        true
    }

    /// Adds an outcome that exists already, behind all others and over the capacity if need be.
    pub fn append(&self, outcome: Outcome<T>) {
        let mut state = self.lock();
        let slot = state.add(Phase::Making, false);
        drop(self.put_locked(&mut state, slot, outcome));
        self.tell(state);
    }

    /// Puts down what became of a slot; one at the source has left it then.
    ///
    /// It is kept even if the queue was closed meanwhile, because the source has moved past it. Gives back the copy of a
    /// submitted item, to be dropped.
    pub fn put(&self, slot: Slot, outcome: Outcome<T>) -> Option<T> {
        let mut state = self.lock();
        let copy = self.put_locked(&mut state, slot, outcome);
        self.tell(state);
        copy
    }

    /// The same, and reserves the next slot if that needs no wait: no other worker is woken for it.
    pub fn put_and_reserve(&self, slot: Slot, outcome: Outcome<T>) -> (Option<T>, Option<Slot>) {
        let mut state = self.lock();
        let copy = self.put_locked(&mut state, slot, outcome);
        let next = state.try_reserve();
        self.tell(state);
        (copy, next)
    }

    fn put_locked(&self, state: &mut State<T>, slot: Slot, outcome: Outcome<T>) -> Option<T> {
        let Some(at) = state.find(slot) else { unreachable!("a slot is there until its outcome is put down") };
        let phase = self.put_down(state, at, outcome);
        state.advance();
        match phase {
            Phase::Running(item) => Some(item),
            _ => None,
        }
    }

    /// Puts the outcome of a slot in its place, and returns what was there. Its turn may have come then.
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

    /// Says that the worker of a slot has left the source, and puts down the outcome later.
    ///
    /// Its slot stays taken, and no hold waits for it.
    pub fn leave_source(&self, slot: Slot) {
        let mut state = self.lock();
        if let Some(at) = state.find(slot) {
            state.settle(at);
        }
        self.tell(state);
    }

    /// Gives a slot back for which there is no outcome.
    pub fn skip(&self, slot: Slot) {
        let mut state = self.lock();
        if let Some(at) = state.find(slot) {
            state.settle(at);
            state.pending.remove(at);
            state.advance();
        }
        self.tell(state);
    }

    /// Waits up to `timeout` for the next outcome. To be called by the consumer.
    pub fn pop(&self, timeout: Duration) -> Pop<T> {
        let begun = Begun::now(timeout);
        loop {
            let popped = self.try_pop();
            if !matches!(popped, Pop::TimedOut) {
                return popped;
            }
            let Some(left) = begun.left() else { return Pop::TimedOut };
            self.wait_filled(left);
        }
    }

    /// The next outcome if there is one. To be called by the consumer.
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

    /// Waits up to `timeout` until [`try_pop`](Self::try_pop) has something to say, and returns whether it has.
    ///
    /// Takes nothing out, as [`wait_claimable`](Self::wait_claimable).
    pub fn wait_filled(&self, timeout: Duration) -> bool {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        while state.ready.is_empty() && !state.ended && !state.closed {
            let Some(slice) = begun.slice() else { return false };
            state.lacked |= std::mem::take(&mut state.was_full);
            state.hungry += 1;
            state = sleep(&self.filled, state, slice);
            state.hungry -= 1;
            state.fed = false;
        }
        true
    }

    /// Ends the stream from either side: the consumer gets no further result, no worker a further slot.
    ///
    /// Buffered outcomes stay, for [`for_each`](Self::for_each), until they are drained.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        drop(state);
        self.room.notify_all();
        self.work.notify_all();
        self.filled.notify_all();
        self.still.notify_all();
    }

    /// Takes out all outcomes, submitted items and copies of those that workers are at, which keep their slots.
    pub fn drain(&self) -> Vec<T> {
        let mut state = self.lock();
        state.waiting.clear();
        state.broken = false;
        // The mark of the end is gone with the rest. Whoever closed the queue has kept results from the consumer, for whom
        // that is no end.
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

    /// Looks at all that is buffered, in order, as long as `look` is Ok. To be called on a queue that is held or closed if
    /// it shall also tell where the source stands.
    ///
    /// `look` is called under the lock: it must not call back, nor run code that might.
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

    /// Looks at all that is buffered, as [`try_for_each`](Self::try_for_each).
    pub fn for_each(&self, mut look: impl FnMut(Slot, View<'_, T>)) {
        let Ok(()) = self.try_for_each(|slot, view| -> Result<(), std::convert::Infallible> {
            look(slot, view);
            Ok(())
        });
    }

    /// Puts another content into a slot that no worker is at. Gives back what is to be dropped: the former one, or this one
    /// if there is no such slot any more.
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
