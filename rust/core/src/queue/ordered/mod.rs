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

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::sync::primitive::{Condvar, Mutex, MutexGuard};

/// Longest uninterrupted sleep of any wait.
pub const LONGEST_SLICE: Duration = Duration::from_millis(100);

/// The number of a slot; slots are numbered in their order.
pub type Slot = u64;

/// The answer to a worker that asks for the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Make one item and [`put`](OrderedQueue::put) its outcome, or [`skip`](OrderedQueue::skip) the slot.
    Granted(Slot),
    /// Full, held, or another worker at the source for the whole time.
    TimedOut,
    /// The queue is closed or the source has ended: no item is to be made.
    Closed,
}

/// The answer to a worker that asks for a submitted item.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim<T> {
    /// The item of a slot, of which the queue keeps a copy until the outcome is there.
    Given(Slot, T),
    /// Nothing is submitted, or the queue is held.
    TimedOut,
    /// The queue is closed: results are not wanted any more.
    Closed,
}

/// The outcome of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// A result.
    Item(T),
    /// An error at the place of a result; others come after it.
    Error(T),
    /// An error after which no item is made before the consumer has it.
    Break(T),
    /// The end, with the error that is its cause if there is one.
    End(Option<T>),
}

impl<T> Outcome<T> {
    fn into_content(self) -> Option<T> {
        match self {
            Outcome::Item(it) | Outcome::Error(it) | Outcome::Break(it) => Some(it),
            Outcome::End(error) => error,
        }
    }

    fn content_mut(&mut self) -> Option<&mut T> {
        match self {
            Outcome::Item(it) | Outcome::Error(it) | Outcome::Break(it) => Some(it),
            Outcome::End(error) => error.as_mut(),
        }
    }

    fn view(&self) -> Option<View<'_, T>> {
        match self {
            Outcome::Item(it) => Some(View::Item(it)),
            Outcome::Error(it) => Some(View::Error(it)),
            Outcome::Break(it) => Some(View::Broken(it)),
            Outcome::End(error) => error.as_ref().map(View::Broken),
        }
    }
}

/// The answer to a consumer that asks for a result.
#[derive(Debug, PartialEq, Eq)]
pub enum Pop<T> {
    /// The next result.
    Item(T),
    /// An error of a worker's at its place.
    Error(T),
    /// An error of the source.
    Broken(T),
    /// The end of the results, also after an error that has ended them.
    Ended,
    /// Somebody has closed the queue before its end.
    Closed,
    /// Nothing came in time.
    TimedOut,
}

/// A look at one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View<'a, T> {
    /// A submitted item that no worker has claimed.
    Waiting(&'a T),
    /// A submitted item that a worker is at.
    Running(&'a T),
    /// A result.
    Item(&'a T),
    /// An error at the place of a result.
    Error(&'a T),
    /// An error of the source.
    Broken(&'a T),
}

impl<'a, T> View<'a, T> {
    /// The item or error that lies there.
    pub fn content(&self) -> &'a T {
        match self {
            View::Waiting(it) | View::Running(it) | View::Item(it) | View::Error(it) | View::Broken(it) => it,
        }
    }
}

#[derive(Debug)]
enum Phase<T> {
    /// A worker makes its item.
    Making,
    Waiting(T),
    Running(T),
    Done(Outcome<T>),
}

#[derive(Debug)]
struct Pending<T> {
    number: Slot,
    phase: Phase<T>,
    /// Whether a hold waits for the worker of this slot.
    busy: bool,
}

/// Workers that sleep for the same thing.
#[derive(Debug, Default)]
struct Idle {
    count: usize,
    /// Whether one was woken that has not run since: one wake-up is enough.
    waking: bool,
}

impl Idle {
    /// Whether one of them is to be woken, if there is something to do.
    fn wake(&mut self, has_work: bool) -> bool {
        let wake = has_work && self.count > 0 && !self.waking;
        self.waking |= wake;
        wake
    }
}

#[derive(Debug)]
struct State<T> {
    /// Outcomes in the order in which the consumer gets them.
    ready: VecDeque<(Slot, Outcome<T>)>,
    /// Slots whose turn has not come, by their numbers.
    pending: VecDeque<Pending<T>>,
    /// Numbers of slots that wait for a worker.
    waiting: VecDeque<Slot>,
    next: Slot,
    /// How many holds there are. No worker begins an item while there is one.
    holds: usize,
    /// How many workers a hold waits for: one at the source at most, and those that may be changing a submitted item.
    busy: usize,
    /// Whether a worker is at the source.
    source_taken: bool,
    closed: bool,
    /// Whether the end lies here, or was met; whether an error lies here before which no item is made.
    finished: bool,
    broken: bool,
    /// Whether the consumer has seen the end.
    ended: bool,
    /// Workers that sleep until they may reserve, and those that sleep until there is something to claim.
    reserving: Idle,
    claiming: Idle,
    /// How many consumers sleep for want of an outcome (there is one, but for errors of its user's), and whether they were
    /// woken and have not run since.
    hungry: usize,
    fed: bool,
    /// Most slots that are taken at a time.
    capacity: usize,
    /// Whether a worker has found no room, and whether the consumer has waited after that.
    was_full: bool,
    lacked: bool,
}

impl<T> State<T> {
    fn len(&self) -> usize {
        self.ready.len() + self.pending.len()
    }

    fn has_room(&self) -> bool {
        self.len() < self.capacity
    }

    fn may_reserve(&self) -> bool {
        self.holds == 0 && !self.source_taken && !self.broken && self.has_room()
    }

    fn is_over(&self) -> bool {
        self.closed || self.finished
    }

    fn may_claim(&self) -> bool {
        self.holds == 0 && !self.waiting.is_empty()
    }

    /// Whether there will be nothing more to claim: all that was handed over was claimed, and no more comes.
    fn is_claimed(&self) -> bool {
        self.closed || self.finished && self.waiting.is_empty()
    }

    fn add(&mut self, phase: Phase<T>, busy: bool) -> Slot {
        let number = self.next;
        self.next += 1;
        self.busy += usize::from(busy);
        self.pending.push_back(Pending { number, phase, busy });
        number
    }

    fn find(&self, slot: Slot) -> Option<usize> {
        self.pending.binary_search_by_key(&slot, |one| one.number).ok()
    }

    /// Notes that the worker of a slot need not be waited for.
    fn settle(&mut self, at: usize) {
        if std::mem::take(&mut self.pending[at].busy) {
            self.busy -= 1;
            if matches!(self.pending[at].phase, Phase::Making) {
                self.source_taken = false;
            }
        }
    }

    /// Moves outcomes whose turn has come to the consumer.
    fn advance(&mut self) {
        while self.pending.front().is_some_and(|one| matches!(one.phase, Phase::Done(_))) {
            if let Some(Pending { number, phase: Phase::Done(outcome), .. }) = self.pending.pop_front() {
                self.ready.push_back((number, outcome));
            }
        }
    }
}

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
        let state = State {
            ready: VecDeque::new(),
            pending: VecDeque::new(),
            waiting: VecDeque::new(),
            next: 0,
            holds: 0,
            busy: 0,
            source_taken: false,
            closed: false,
            finished: false,
            broken: false,
            ended: false,
            reserving: Idle::default(),
            claiming: Idle::default(),
            hungry: 0,
            fed: false,
            capacity: capacity.max(1),
            was_full: false,
            lacked: false,
        };
        let [room, work, still, filled] = std::array::from_fn(|_| Condvar::new());
        Self { in_order, state: Mutex::new(state), room, work, still, filled }
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

    /// Waits up to `timeout` for the source, and for a slot for its next item. To be called by a worker.
    pub fn reserve(&self, timeout: Duration) -> Reserve {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        loop {
            if state.is_over() {
                self.tell(state); // one worker is woken at a time, so each wakes the next
                return Reserve::Closed;
            }
            if state.may_reserve() {
                state.source_taken = true;
                return Reserve::Granted(state.add(Phase::Making, true));
            }
            let Some(slice) = begun.slice() else { return Reserve::TimedOut };
            state.was_full |= state.holds == 0 && !state.has_room();
            state.reserving.count += 1;
            state = sleep(&self.room, state, slice);
            state.reserving.count -= 1;
            state.reserving.waking = false;
        }
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

    /// Adds an outcome that exists already, behind all others and over the capacity if need be.
    pub fn append(&self, outcome: Outcome<T>) {
        let mut state = self.lock();
        let slot = state.add(Phase::Making, false);
        drop(self.put_locked(state, slot, outcome));
    }

    /// Puts down what became of a slot; one at the source has left it then.
    ///
    /// It is kept even if the queue was closed meanwhile, because the source has moved past it. Gives back the copy of a
    /// submitted item, to be dropped.
    pub fn put(&self, slot: Slot, outcome: Outcome<T>) -> Option<T> {
        self.put_locked(self.lock(), slot, outcome)
    }

    fn put_locked(&self, mut state: MutexGuard<'_, State<T>>, slot: Slot, outcome: Outcome<T>) -> Option<T> {
        let Some(at) = state.find(slot) else { unreachable!("a slot is there until its outcome is put down") };
        state.settle(at);
        state.finished |= matches!(outcome, Outcome::End(_));
        state.broken |= matches!(outcome, Outcome::Break(_));
        let is_last = matches!(outcome, Outcome::End(_) | Outcome::Break(_));
        let phase = if self.in_order || is_last {
            std::mem::replace(&mut state.pending[at].phase, Phase::Done(outcome))
        } else {
            state.ready.push_back((slot, outcome));
            state.pending.remove(at).map_or(Phase::Making, |one| one.phase)
        };
        state.advance();
        self.tell(state);
        match phase {
            Phase::Running(item) => Some(item),
            _ => None,
        }
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

    /// Lets no worker begin a further item for as long as the hold lives. Some may be at one: see [`Hold::wait`].
    pub fn hold(&self) -> Hold<&Self, T> {
        Hold::new(self)
    }

    /// Waits up to `timeout` until no worker is at the source or at an item that it may change, on a queue that is held or
    /// closed.
    pub fn wait_still(&self, timeout: Duration) -> bool {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        while state.busy > 0 {
            let Some(slice) = begun.slice() else { return false };
            state = sleep(&self.still, state, slice);
        }
        true
    }

    /// Takes out all outcomes, submitted items and copies of those that workers are at, which keep their slots.
    pub fn drain(&self) -> Vec<T> {
        let mut state = self.lock();
        state.waiting.clear();
        state.broken = false;
        state.ended |= state.finished; // the mark of the end is gone with the rest
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

/// A hold on a queue: no worker begins an item before the last hold is dropped.
///
/// A hold belongs to the caller that has taken it: no other caller can end it.
#[derive(Debug)]
#[must_use = "the workers go on when the hold is dropped"]
pub struct Hold<Q, T>
where
    Q: Deref<Target = OrderedQueue<T>>,
{
    queue: Q,
    _of: PhantomData<fn(T)>,
}

impl<Q, T> Hold<Q, T>
where
    Q: Deref<Target = OrderedQueue<T>>,
{
    /// A hold that keeps whatever owns the queue.
    pub fn new(queue: Q) -> Self {
        queue.lock().holds += 1;
        Self { queue, _of: PhantomData }
    }

    /// Returns the owner of the queue.
    pub fn owner(&self) -> &Q {
        &self.queue
    }

    /// Waits up to `timeout` until the workers stand still, which they do from then on. Returns whether they do.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.queue.wait_still(timeout)
    }
}

impl<Q, T> Drop for Hold<Q, T>
where
    Q: Deref<Target = OrderedQueue<T>>,
{
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.holds -= 1;
        self.queue.tell(state);
    }
}

/// When a wait began, and how long it may take.
struct Begun {
    /// None for a wait that is none: it spares the clock.
    at: Option<Instant>,
    timeout: Duration,
}

impl Begun {
    fn now(timeout: Duration) -> Self {
        Self { at: (!timeout.is_zero()).then(Instant::now), timeout }
    }

    /// How long it may still take; None if the time is up. Counts from the beginning, as a deadline may lie beyond what an
    /// `Instant` can say.
    fn left(&self) -> Option<Duration> {
        let left = self.timeout.checked_sub(self.at?.elapsed())?;
        (!left.is_zero()).then_some(left)
    }

    /// How long to sleep next.
    fn slice(&self) -> Option<Duration> {
        self.left().map(|left| left.min(LONGEST_SLICE))
    }
}

fn sleep<'a, S>(on: &Condvar, state: MutexGuard<'a, S>, slice: Duration) -> MutexGuard<'a, S> {
    on.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0
}
