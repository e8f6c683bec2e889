//! The state that the queue's lock protects.

use std::collections::VecDeque;

use super::answers::{Outcome, Slot};

#[derive(Debug)]
pub(super) enum Phase<T> {
    Making,
    Waiting(T),
    /// A worker is processing the item. The queue keeps a copy of the processed item, or the parts of the item that the
    /// worker does not need.
    Running(T),
    Done(Outcome<T>),
}

#[derive(Debug)]
pub(super) struct Pending<T> {
    pub number: Slot,
    pub phase: Phase<T>,
    /// Whether the worker of this slot uses the source or may change the item, so that a thread must wait before it
    /// inspects the queue.
    pub busy: bool,
}

#[derive(Debug, Default)]
pub(super) struct Idle {
    pub count: usize,
    /// Whether a waiting worker was woken up but has not run yet.
    pub waking: bool,
}

impl Idle {
    pub fn wake(&mut self, has_work: bool) -> bool {
        let wake = has_work && self.count > 0 && !self.waking;
        self.waking |= wake;
        wake
    }
}

#[derive(Debug)]
pub(super) struct State<T> {
    pub ready: VecDeque<(Slot, Outcome<T>)>,
    /// Slots without an outcome, and slots that wait for earlier slots, in ascending order.
    pub pending: VecDeque<Pending<T>>,
    pub waiting: VecDeque<Slot>,
    pub next: Slot,
    pub holds: usize,
    /// The number of slots that are `busy`.
    pub busy: usize,
    pub source_taken: bool,
    pub closed: bool,
    pub finished: bool,
    /// Whether the queue contains an error that the consumer must receive before workers continue.
    pub broken: bool,
    pub ended: bool,
    pub reserving: Idle,
    pub claiming: Idle,
    pub consuming: Idle,
    pub inspecting: Idle,
    pub capacity: usize,
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
            consuming: Idle::default(),
            inspecting: Idle::default(),
            capacity: capacity.max(1),
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
        let at = slot.checked_sub(self.pending.front()?.number)? as usize;
        match self.pending.get(at) {
            Some(one) if one.number == slot => Some(at),
            _ => self.pending.binary_search_by_key(&slot, |one| one.number).ok(),
        }
    }

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

    pub fn settle(&mut self, at: usize) {
        if std::mem::take(&mut self.pending[at].busy) {
            self.busy -= 1;
            if matches!(self.pending[at].phase, Phase::Making) {
                self.source_taken = false;
            }
        }
    }

    pub fn advance(&mut self) {
        while self.pending.front().is_some_and(|one| matches!(one.phase, Phase::Done(_))) {
            if let Some(Pending { number, phase: Phase::Done(outcome), .. }) = self.pending.pop_front() {
                self.ready.push_back((number, outcome));
            }
        }
    }
}
