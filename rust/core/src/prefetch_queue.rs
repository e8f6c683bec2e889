//! The bounded queue between a prefetching thread and the thread that consumes its items.
//!
//! Role: one producer thread and one consumer thread of the same process share a [`PrefetchQueue`]. Items travel over
//! a crossbeam channel; the gate beside it decides when the producer may make the next item. The producer reserves a
//! place *before* it makes an item, so that it never holds an item that found no place: whoever has paused the queue
//! sees every item that was made.
//!
//! No wait is unbounded: each returns after the slice that it was given, at most [`LONGEST_SLICE`] where it loops.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

/// Longest uninterrupted sleep of any wait.
pub const LONGEST_SLICE: Duration = Duration::from_millis(100);

/// What the producer is told when it asks for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Make one item and hand it over with [`PrefetchQueue::commit`], or say [`PrefetchQueue::finish`].
    Granted,
    /// Full or paused for the whole time.
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

/// What pausing is about. The lock is held for a few instructions only, never while waiting for anything else.
#[derive(Debug, Default)]
struct Gate {
    paused: bool,
    closed: bool,
    /// From a granted reservation to the commit or the finish that answers it.
    producing: bool,
    /// The producer has handed over an error or its end.
    finished: bool,
}

/// A bounded queue for one producer thread and one consumer thread. See the module for its rules.
#[derive(Debug)]
pub struct PrefetchQueue<T, E> {
    capacity: usize,
    sender: Sender<Message<T, E>>,
    receiver: Receiver<Message<T, E>>,
    gate: Mutex<Gate>,
    /// Told of every change of the gate, and of a place that got free where `starved`.
    changed: Condvar,
    /// Whether the producer sleeps, or is about to, because there is no place. Written under the gate's lock.
    starved: AtomicBool,
    /// Messages that come before those in the channel: restored ones, and those a snapshot has looked at.
    front: Mutex<VecDeque<Message<T, E>>>,
    /// Length of `front`. The consumer is its only writer.
    in_front: AtomicUsize,
    /// Whether the consumer has seen the error, the end, or has closed. The consumer is its only writer but `close`.
    ended: AtomicBool,
}

/// A thread that panicked held the lock between plain assignments, so the data is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T, E> PrefetchQueue<T, E> {
    /// An empty queue for up to `capacity` items; 0 counts as 1, since an item must lie somewhere.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        // One place more than for items: the end and an error always fit, so they are never waited for.
        let (sender, receiver) = crossbeam_channel::bounded(capacity.saturating_add(1));
        Self {
            capacity,
            sender,
            receiver,
            gate: Mutex::default(),
            changed: Condvar::new(),
            starved: AtomicBool::new(false),
            front: Mutex::default(),
            in_front: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Most items that are buffered at a time (restored ones may be more).
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of messages buffered now; an error or the end counts as one.
    pub fn len(&self) -> usize {
        self.receiver.len() + self.in_front.load(Ordering::Relaxed)
    }

    /// Whether nothing is buffered now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits up to `timeout` for leave to make the next item. To be called by the producer.
    pub fn reserve(&self, timeout: Duration) -> Reserve {
        let deadline = Instant::now() + timeout;
        let mut gate = lock(&self.gate);
        loop {
            if gate.closed || gate.finished {
                return Reserve::Closed;
            }
            if !gate.paused {
                if self.len() < self.capacity {
                    gate.producing = true;
                    return Reserve::Granted;
                }
                self.starved.store(true, Ordering::Relaxed);
                // SYNC(starved): pairs with the fence in `wake_starved`. Of the two fences one comes first: either
                // we see the place that was freed before the other, or the consumer sees `starved`.
                fence(Ordering::SeqCst);
            }
            if gate.paused || self.len() >= self.capacity {
                let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                    self.starved.store(false, Ordering::Relaxed);
                    return Reserve::TimedOut;
                };
                let slice = left.min(LONGEST_SLICE);
                gate = self.changed.wait_timeout(gate, slice).unwrap_or_else(PoisonError::into_inner).0;
            }
            self.starved.store(false, Ordering::Relaxed);
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
    /// To be called by a producer that has more to wait for than its source. Its place stays reserved, and pausing does
    /// not wait for it.
    pub fn park(&self) {
        self.stand_still(false);
    }

    fn hand_over(&self, message: Message<T, E>, last: bool) {
        // The reservation left a place; only a producer that never reserved can find none, and its message is void.
        let _ = self.sender.try_send(message);
        self.stand_still(last);
    }

    fn stand_still(&self, last: bool) {
        let mut gate = lock(&self.gate);
        gate.producing = false;
        gate.finished |= last;
        let somebody_waits = gate.paused || gate.closed;
        drop(gate);
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
        if self.ended.load(Ordering::Relaxed) {
            return Pop::Ended;
        }
        let message = if self.in_front.load(Ordering::Relaxed) > 0 { self.pop_front() } else { None };
        let message = match message {
            Some(message) => message,
            None => match self.receive(timeout) {
                Some(message) => message,
                None => return Pop::TimedOut,
            },
        };
        self.wake_starved();
        match message {
            Message::Item(item) => Pop::Item(item),
            Message::Error(error) => {
                self.ended.store(true, Ordering::Relaxed);
                Pop::Error(error)
            }
            Message::End => {
                self.ended.store(true, Ordering::Relaxed);
                Pop::Ended
            }
        }
    }

    fn pop_front(&self) -> Option<Message<T, E>> {
        let mut front = lock(&self.front);
        let message = front.pop_front();
        self.in_front.store(front.len(), Ordering::Relaxed);
        message
    }

    fn receive(&self, timeout: Duration) -> Option<Message<T, E>> {
        match self.receiver.try_recv() {
            Ok(message) => return Some(message),
            Err(TryRecvError::Disconnected) => return Some(Message::End),
            Err(TryRecvError::Empty) if timeout.is_zero() => return None,
            Err(TryRecvError::Empty) => {}
        }
        match self.receiver.recv_timeout(timeout) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Message::End),
        }
    }

    fn wake_starved(&self) {
        // SYNC(starved): pairs with the fence in `reserve`.
        fence(Ordering::SeqCst);
        if self.starved.load(Ordering::Relaxed) {
            // Through the lock, so that the producer is either before its look or asleep.
            drop(lock(&self.gate));
            self.changed.notify_all();
        }
    }

    /// Ends the stream from either side: the consumer gets no further item, the producer no further leave.
    ///
    /// What is buffered stays, for [`snapshot`](Self::snapshot).
    pub fn close(&self) {
        lock(&self.gate).closed = true;
        self.ended.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Whether `close` was called.
    pub fn is_closed(&self) -> bool {
        lock(&self.gate).closed
    }

    /// Lets the producer make no further item, and waits up to `timeout` until it makes none.
    ///
    /// Returns whether the producer is parked (or has finished). It stays paused either way.
    pub fn pause(&self, timeout: Duration) -> bool {
        lock(&self.gate).paused = true;
        self.wait_parked(timeout)
    }

    /// Waits up to `timeout` until the producer is not making an item.
    pub fn wait_parked(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut gate = lock(&self.gate);
        while gate.producing {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return false;
            };
            let slice = left.min(LONGEST_SLICE);
            gate = self.changed.wait_timeout(gate, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Lets the producer go on.
    pub fn resume(&self) {
        lock(&self.gate).paused = false;
        self.changed.notify_all();
    }

    /// Whether the queue is paused.
    pub fn is_paused(&self) -> bool {
        lock(&self.gate).paused
    }

    /// Puts items in front of all others, over the capacity if need be. To be called before the first `pop`.
    pub fn restore(&self, items: impl IntoIterator<Item = T>, error: Option<E>) {
        let failed = error.is_some();
        let mut front = lock(&self.front);
        front.extend(items.into_iter().map(Message::Item));
        front.extend(error.map(Message::Error));
        self.in_front.store(front.len(), Ordering::Relaxed);
        drop(front);
        if failed {
            lock(&self.gate).finished = true;
        }
    }

    /// Takes out all that is buffered. To be called by the consumer.
    pub fn drain(&self) -> Buffered<T, E> {
        let mut buffered = Buffered { items: Vec::new(), error: None };
        let mut front = lock(&self.front);
        let messages = front.drain(..).chain(self.receiver.try_iter());
        for message in messages {
            match message {
                Message::Item(item) => buffered.items.push(item),
                Message::Error(error) => buffered.error = Some(error),
                Message::End => {}
            }
        }
        self.in_front.store(0, Ordering::Relaxed);
        drop(front);
        if lock(&self.gate).finished {
            self.ended.store(true, Ordering::Relaxed); // the mark of the end is gone with the rest
        }
        self.wake_starved();
        buffered
    }

    /// Copies all that is buffered, which stays. To be called by the consumer, on a queue that is paused or closed
    /// if the copy shall also tell where the producer stands.
    pub fn snapshot<U, F>(&self, item: impl Fn(&T) -> U, error: impl Fn(&E) -> F) -> Buffered<U, F> {
        let mut front = lock(&self.front);
        front.extend(self.receiver.try_iter());
        self.in_front.store(front.len(), Ordering::Relaxed);
        let mut buffered = Buffered { items: Vec::new(), error: None };
        for message in front.iter() {
            match message {
                Message::Item(it) => buffered.items.push(item(it)),
                Message::Error(it) => buffered.error = Some(error(it)),
                Message::End => {}
            }
        }
        buffered
    }
}
