//! What the lock of the queue guards, and waits for it to change.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::answers::{Outcome, Slot};
use crate::sync::primitive::{Condvar, MutexGuard};

/// Longest uninterrupted sleep of any wait.
pub const LONGEST_SLICE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) enum Phase<T> {
    /// A worker makes its item.
    Making,
    Waiting(T),
    /// A worker has the item; here lies a copy, or what the worker does not need of it.
    Running(T),
    Done(Outcome<T>),
}

#[derive(Debug)]
pub(super) struct Pending<T> {
    pub number: Slot,
    pub phase: Phase<T>,
    /// Whether a hold waits for the worker of this slot.
    pub busy: bool,
}

/// Workers that sleep for the same thing.
#[derive(Debug, Default)]
pub(super) struct Idle {
    pub count: usize,
    /// Whether one was woken that has not run since: one wake-up is enough.
    pub waking: bool,
}

impl Idle {
    /// Whether one of them is to be woken, if there is something to do.
    pub fn wake(&mut self, has_work: bool) -> bool {
        let wake = has_work && self.count > 0 && !self.waking;
        self.waking |= wake;
        wake
    }
}

#[derive(Debug)]
pub(super) struct State<T> {
    /// Outcomes in the order in which the consumer gets them.
    pub ready: VecDeque<(Slot, Outcome<T>)>,
    /// Slots whose turn has not come, by their numbers.
    pub pending: VecDeque<Pending<T>>,
    /// Numbers of slots that wait for a worker.
    pub waiting: VecDeque<Slot>,
    pub next: Slot,
    /// How many holds there are. No worker begins an item while there is one.
    pub holds: usize,
    /// How many workers a hold waits for: one at the source at most, and those that may be changing a submitted item.
    pub busy: usize,
    /// Whether a worker is at the source.
    pub source_taken: bool,
    pub closed: bool,
    /// Whether the end lies here, or was met; whether an error lies here before which no item is made.
    pub finished: bool,
    pub broken: bool,
    /// Whether the consumer has seen the end.
    pub ended: bool,
    /// Workers that sleep until they may reserve, and those that sleep until there is something to claim.
    pub reserving: Idle,
    pub claiming: Idle,
    /// How many consumers sleep for want of an outcome (there is one, but for errors of its user's), and whether they were
    /// woken and have not run since.
    pub hungry: usize,
    pub fed: bool,
    /// Most slots that are taken at a time.
    pub capacity: usize,
    /// Whether a worker has found no room, and whether the consumer has waited after that.
    pub was_full: bool,
    pub lacked: bool,
}

impl<T> State<T> {
    pub fn new(capacity: usize) -> Self {
        Self {
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
        }
    }

    pub fn len(&self) -> usize {
        self.ready.len() + self.pending.len()
    }

    pub fn has_room(&self) -> bool {
        self.len() < self.capacity
    }

    pub fn may_reserve(&self) -> bool {
        self.holds == 0 && !self.source_taken && !self.broken && self.has_room()
    }

    /// Takes the source, and a slot for its next item, if that is to be had.
    pub fn try_reserve(&mut self) -> Option<Slot> {
        if self.is_over() || !self.may_reserve() {
            return None;
        }
        self.source_taken = true;
        Some(self.add(Phase::Making, true))
    }

    pub fn is_over(&self) -> bool {
        self.closed || self.finished
    }

    pub fn may_claim(&self) -> bool {
        self.holds == 0 && !self.waiting.is_empty()
    }

    /// Whether there will be nothing more to claim: all that was handed over was claimed, and no more comes.
    pub fn is_claimed(&self) -> bool {
        self.closed || self.finished && self.waiting.is_empty()
    }

    pub fn add(&mut self, phase: Phase<T>, busy: bool) -> Slot {
        let number = self.next;
        self.next += 1;
        self.busy += usize::from(busy);
        self.pending.push_back(Pending { number, phase, busy });
        number
    }

    pub fn find(&self, slot: Slot) -> Option<usize> {
        // Most often there is no gap.
        let at = slot.checked_sub(self.pending.front()?.number)? as usize;
        match self.pending.get(at) {
            Some(one) if one.number == slot => Some(at),
            _ => self.pending.binary_search_by_key(&slot, |one| one.number).ok(),
        }
    }

    /// Takes out the item of a slot that a worker has claimed, and where in `pending` that is. None if it was drained.
    pub fn take_running(&mut self, slot: Slot) -> Option<(usize, T)> {
        let at = self.find(slot)?;
        match std::mem::replace(&mut self.pending[at].phase, Phase::Making) {
            Phase::Running(item) => Some((at, item)),
            phase => {
                self.pending[at].phase = phase;
                None
            }
        }
    }

    /// Notes that the worker of a slot need not be waited for.
    pub fn settle(&mut self, at: usize) {
        if std::mem::take(&mut self.pending[at].busy) {
            self.busy -= 1;
            if matches!(self.pending[at].phase, Phase::Making) {
                self.source_taken = false;
            }
        }
    }

    /// Moves outcomes whose turn has come to the consumer.
    pub fn advance(&mut self) {
        while self.pending.front().is_some_and(|one| matches!(one.phase, Phase::Done(_))) {
            if let Some(Pending { number, phase: Phase::Done(outcome), .. }) = self.pending.pop_front() {
                self.ready.push_back((number, outcome));
            }
        }
    }
}

/// When a wait began, and how long it may take.
pub(super) struct Begun {
    /// None for a wait that is none: it spares the clock.
    at: Option<Instant>,
    timeout: Duration,
}

impl Begun {
    pub fn now(timeout: Duration) -> Self {
        Self { at: (!timeout.is_zero()).then(Instant::now), timeout }
    }

    /// How long it may still take; None if the time is up. Counts from the beginning, as a deadline may lie beyond what an
    /// `Instant` can say.
    pub fn left(&self) -> Option<Duration> {
        let left = self.timeout.checked_sub(self.at?.elapsed())?;
        (!left.is_zero()).then_some(left)
    }

    /// How long to sleep next.
    pub fn slice(&self) -> Option<Duration> {
        self.left().map(|left| left.min(LONGEST_SLICE))
    }
}

pub(super) fn sleep<'a, S>(on: &Condvar, state: MutexGuard<'a, S>, slice: Duration) -> MutexGuard<'a, S> {
    on.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0
}
