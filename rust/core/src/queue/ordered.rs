//! The bounded queue between a prefetching thread and the thread that consumes its items.
//!
//! Role: one producer thread and one consumer thread of the same process share a [`PrefetchQueue`]. The producer
//! reserves a place *before* it makes an item, so that it never holds an item that found no place: whoever holds the
//! queue (see [`PrefetchQueue::hold`]) sees every item that was made. Any number of threads may hold it, each for itself.
//!
//! One lock guards everything, and is held for a few instructions only, never while waiting or while foreign code runs:
//! what is dropped is dropped outside. Memory follows what is buffered, whatever the capacity. Either side is woken only
//! where it sleeps, as each wake-up is a system call.
//!
//! No wait is unbounded: each returns after the slice that it was given, at most [`LONGEST_SLICE`] where it loops.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::primitive::{Condvar, Mutex, MutexGuard};

/// Longest uninterrupted sleep of any wait.
pub const LONGEST_SLICE: Duration = Duration::from_millis(100);

/// What the producer is told when it asks for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Make one item and hand it over with [`PrefetchQueue::commit`], or say [`PrefetchQueue::finish`].
    Granted,
    /// Full or held for the whole time.
    TimedOut,
    /// Nobody wants items any more.
    Closed,
}

/// What the consumer gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Pop<T, E> {
    /// The next item.
    Item(T),
    /// What ended the producer; nothing comes after it.
    Error(E),
    /// The end, also after an error or after `close`.
    Ended,
    /// Nothing came in time.
    TimedOut,
}

/// What is buffered, in order: items, and the error that follows them if the producer has met one.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Buffered<T, E> {
    /// Items that were not popped yet.
    pub items: Vec<T>,
    /// The error behind the last item.
    pub error: Option<E>,
}

#[derive(Debug)]
enum Message<T, E> {
    Item(T),
    Error(E),
    End,
}

#[derive(Debug)]
struct State<T, E> {
    /// Restored messages, and those that the producer has handed over.
    messages: VecDeque<Message<T, E>>,
    /// How many holds there are. The producer begins no item while there is one.
    holds: usize,
    closed: bool,
    /// From a granted reservation to the commit or the finish that answers it.
    producing: bool,
    /// The producer has handed over an error or its end.
    finished: bool,
    /// The consumer has seen the error or the end, or somebody has closed.
    ended: bool,
    /// The producer sleeps for want of a place or while held, and was not woken yet: whoever wakes it clears the flag, or
    /// each item taken before it runs would cost a system call.
    starved: bool,
    /// The consumer sleeps for want of a message, and was not woken yet.
    hungry: bool,
    /// Most items that are buffered.
    capacity: usize,
    /// Whether the producer has found no place, and whether the consumer has waited for it after that.
    was_full: bool,
    lacked: bool,
}

/// A bounded queue for one producer thread and one consumer thread. See the module for its rules.
#[derive(Debug)]
pub struct PrefetchQueue<T, E> {
    state: Mutex<State<T, E>>,
    /// Told of what the producer, and whoever waits for the producer to stand still, waits for.
    changed: Condvar,
    /// Told of what the consumer waits for.
    filled: Condvar,
}

impl<T, E> PrefetchQueue<T, E> {
    /// An empty queue for up to `capacity` items; 0 counts as 1, since an item must lie somewhere.
    pub fn new(capacity: usize) -> Self {
        let state = State {
            messages: VecDeque::new(),
            holds: 0,
            closed: false,
            producing: false,
            finished: false,
            ended: false,
            starved: false,
            hungry: false,
            capacity: capacity.max(1),
            was_full: false,
            lacked: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), filled: Condvar::new() }
    }

    /// A thread that panicked held the lock between plain assignments, so the data is whole.
    fn lock(&self) -> MutexGuard<'_, State<T, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Most items that are buffered at a time (restored ones may be more).
    pub fn capacity(&self) -> usize {
        self.lock().capacity
    }

    /// Changes how many items are buffered at a time; 0 counts as 1. To be called by the producer.
    pub fn set_capacity(&self, capacity: usize) {
        self.lock().capacity = capacity.max(1);
    }

    /// Whether, since the last call, the producer has found no place at one moment and the consumer no item at a later one:
    /// with more places it would have found some.
    pub fn has_lacked(&self) -> bool {
        std::mem::take(&mut self.lock().lacked)
    }

    /// Whether the consumer waits for an item at this moment.
    pub fn is_awaited(&self) -> bool {
        self.lock().hungry
    }

    /// Number of messages buffered now; an error or the end counts as one.
    pub fn len(&self) -> usize {
        self.lock().messages.len()
    }

    /// Whether nothing is buffered now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits up to `timeout` for leave to make the next item. To be called by the producer.
    pub fn reserve(&self, timeout: Duration) -> Reserve {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        loop {
            if state.closed || state.finished {
                return Reserve::Closed;
            }
            if state.holds == 0 && state.messages.len() < state.capacity {
                state.producing = true;
                return Reserve::Granted;
            }
            let Some(slice) = begun.slice() else { return Reserve::TimedOut };
            state.was_full |= state.holds == 0;
            state.starved = true;
            state = sleep(&self.changed, state, slice);
            state.starved = false;
        }
    }

    /// Hands over the item that was reserved for, or the error that stands in its place and ends the stream.
    ///
    /// The item is kept even if the queue was closed meanwhile, because its source has moved past it.
    pub fn commit(&self, item: Result<T, E>) {
        let failed = item.is_err();
        self.hand_over(item.map_or_else(Message::Error, Message::Item), failed);
    }

    /// Says that there is no further item. To be called by the producer.
    pub fn finish(&self) {
        self.hand_over(Message::End, true);
    }

    /// Says that the item is made and its source left alone, though it is handed over later.
    ///
    /// To be called by a producer that has more to wait for than its source. Its place stays reserved, and no hold
    /// waits for it.
    pub fn park(&self) {
        let mut state = self.lock();
        state.producing = false;
        self.tell_of_standstill(state);
    }

    fn hand_over(&self, message: Message<T, E>, last: bool) {
        let mut state = self.lock();
        state.messages.push_back(message);
        state.producing = false;
        state.finished |= last;
        let hungry = std::mem::take(&mut state.hungry);
        self.tell_of_standstill(state);
        if hungry {
            self.filled.notify_one();
        }
    }

    /// Wakes those who wait for the producer to stand still: they hold the queue, or it is closed.
    fn tell_of_standstill(&self, state: MutexGuard<'_, State<T, E>>) {
        let somebody_waits = state.holds > 0 || state.closed;
        drop(state);
        if somebody_waits {
            self.changed.notify_all();
        }
    }

    /// Reserves and commits an item that exists already, waiting as long as it takes. Gives it back if closed.
    pub fn push(&self, item: Result<T, E>) -> Result<(), Result<T, E>> {
        loop {
            match self.reserve(LONGEST_SLICE) {
                Reserve::Granted => {
                    self.commit(item);
                    return Ok(());
                }
                Reserve::TimedOut => {}
                Reserve::Closed => return Err(item),
            }
        }
    }

    /// Waits up to `timeout` for the next item. To be called by the consumer.
    pub fn pop(&self, timeout: Duration) -> Pop<T, E> {
        let begun = Begun::now(timeout);
        loop {
            let popped = self.try_pop();
            if !matches!(popped, Pop::TimedOut) {
                return popped;
            }
            let Some(slice) = begun.slice() else { return Pop::TimedOut };
            self.wait_filled(slice);
        }
    }

    /// The next item if there is one. To be called by the consumer.
    pub fn try_pop(&self) -> Pop<T, E> {
        let mut state = self.lock();
        if state.ended {
            return Pop::Ended;
        }
        let popped = match state.messages.pop_front() {
            None => return Pop::TimedOut,
            Some(Message::Item(item)) => Pop::Item(item),
            Some(Message::Error(error)) => Pop::Error(error),
            Some(Message::End) => Pop::Ended,
        };
        state.ended = !matches!(popped, Pop::Item(_));
        let starved = std::mem::take(&mut state.starved);
        drop(state);
        if starved {
            self.changed.notify_all();
        }
        popped
    }

    /// Waits up to `timeout` until [`try_pop`](Self::try_pop) has something to say, and returns whether it has.
    ///
    /// Takes nothing out: where the items are Python objects, a thread without the GIL must not move references.
    pub fn wait_filled(&self, timeout: Duration) -> bool {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        while state.messages.is_empty() && !state.ended {
            let Some(slice) = begun.slice() else { return false };
            state.lacked |= std::mem::take(&mut state.was_full);
            state.hungry = true;
            state = sleep(&self.filled, state, slice);
            state.hungry = false;
        }
        true
    }

    /// Ends the stream from either side: the consumer gets no further item, the producer no further leave.
    ///
    /// What is buffered stays, for [`snapshot`](Self::snapshot).
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.ended = true;
        drop(state);
        self.changed.notify_all();
        self.filled.notify_all();
    }

    /// Lets the producer begin no further item for as long as the hold lives. It may be at one: see [`Hold::wait`].
    pub fn hold(&self) -> Hold<&Self, T, E> {
        Hold::new(self)
    }

    /// Waits up to `timeout` until the producer is not making an item, on a queue that is held or closed.
    pub fn wait_parked(&self, timeout: Duration) -> bool {
        let begun = Begun::now(timeout);
        let mut state = self.lock();
        while state.producing {
            let Some(slice) = begun.slice() else { return false };
            state = sleep(&self.changed, state, slice);
        }
        true
    }

    /// Whether the queue was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether somebody holds the queue.
    pub fn is_held(&self) -> bool {
        self.lock().holds > 0
    }

    /// Puts items in front of all others, over the capacity if need be. To be called before the first `pop`.
    pub fn restore(&self, items: impl IntoIterator<Item = T>, error: Option<E>) {
        let failed = error.is_some();
        let mut restored: VecDeque<_> = items.into_iter().map(Message::Item).collect();
        restored.extend(error.map(Message::Error));
        let mut state = self.lock();
        restored.append(&mut state.messages);
        state.messages = restored;
        state.finished |= failed;
        let hungry = std::mem::take(&mut state.hungry);
        drop(state);
        if hungry {
            self.filled.notify_one();
        }
    }

    /// Takes out all that is buffered. To be called by the consumer.
    pub fn drain(&self) -> Buffered<T, E> {
        let mut state = self.lock();
        let messages = std::mem::take(&mut state.messages);
        state.ended |= state.finished; // the mark of the end is gone with the rest
        drop(state);
        self.changed.notify_all();
        let mut buffered = Buffered { items: Vec::with_capacity(messages.len()), error: None };
        for message in messages {
            match message {
                Message::Item(item) => buffered.items.push(item),
                Message::Error(error) => buffered.error = Some(error),
                Message::End => {}
            }
        }
        buffered
    }

    /// Copies all that is buffered, which stays. To be called by the consumer, on a queue that is held or closed
    /// if the copy shall also tell where the producer stands.
    ///
    /// `item` and `error` are called under the lock: they must not call back, nor run code that might.
    pub fn snapshot<U, F>(&self, item: impl Fn(&T) -> U, error: impl Fn(&E) -> F) -> Buffered<U, F> {
        let mut buffered = Buffered { items: Vec::new(), error: None };
        let all: Result<(), std::convert::Infallible> = self.try_for_each(|content| {
            match content {
                Ok(it) => buffered.items.push(item(it)),
                Err(it) => buffered.error = Some(error(it)),
            }
            Ok(())
        });
        let Ok(()) = all;
        buffered
    }

    /// Looks at all that is buffered, in order, as long as `look` is Ok. It is called under the lock, as in `snapshot`.
    pub fn try_for_each<X>(&self, mut look: impl FnMut(Result<&T, &E>) -> Result<(), X>) -> Result<(), X> {
        self.lock().messages.iter().try_for_each(|message| match message {
            Message::Item(item) => look(Ok(item)),
            Message::Error(error) => look(Err(error)),
            Message::End => Ok(()),
        })
    }
}

/// A hold on a queue: the producer begins no item before the last hold is dropped.
///
/// A hold belongs to whoever has taken it, so nobody can end that of another.
#[derive(Debug)]
#[must_use = "the producer goes on when the hold is dropped"]
pub struct Hold<Q, T, E>
where
    Q: Deref<Target = PrefetchQueue<T, E>>,
{
    queue: Q,
    _of: PhantomData<fn(T, E)>,
}

impl<Q, T, E> Hold<Q, T, E>
where
    Q: Deref<Target = PrefetchQueue<T, E>>,
{
    /// A hold that keeps whatever owns the queue.
    pub fn new(queue: Q) -> Self {
        queue.lock().holds += 1;
        Self { queue, _of: PhantomData }
    }

    /// What owns the queue.
    pub fn owner(&self) -> &Q {
        &self.queue
    }

    /// Waits up to `timeout` until the producer stands still, which it does from then on. Returns whether it does.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.queue.wait_parked(timeout)
    }
}

impl<Q, T, E> Drop for Hold<Q, T, E>
where
    Q: Deref<Target = PrefetchQueue<T, E>>,
{
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.holds -= 1;
        let goes_on = state.holds == 0;
        drop(state);
        if goes_on {
            self.queue.changed.notify_all();
        }
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

    /// How long to sleep next; None where the time is up. Counts from the beginning, as a deadline may lie beyond what an
    /// `Instant` can say.
    fn slice(&self) -> Option<Duration> {
        let left = self.timeout.checked_sub(self.at?.elapsed())?;
        (!left.is_zero()).then(|| left.min(LONGEST_SLICE))
    }
}

fn sleep<'a, S>(on: &Condvar, state: MutexGuard<'a, S>, slice: Duration) -> MutexGuard<'a, S> {
    on.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0
}
