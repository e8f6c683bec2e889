//! Rank 0's part: counts the values of all ranks, tells them the least, and judges if one stays away.

use std::time::Instant;

use super::message::Message;
use super::{Answer, Fault, Verdict, WATCH};

/// The hub's knowledge of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Seat {
    /// It has never come.
    Empty,
    /// It is connected. `heard` is when it was last heard of, None until it gives signs of life.
    Taken { heard: Option<Instant> },
    /// It said goodbye.
    Parted,
    /// Its connection broke.
    Dead,
}

/// A rank has waited long enough: those who are missing are listened for, then judged.
#[derive(Debug, Clone, Hash)]
struct Trial {
    by: u32,
    missing: Vec<u32>,
    begun: Instant,
}

/// The state of rank 0. Numbers of ranks that come from outside are checked by [`Hub::receive`]'s caller.
#[derive(Debug, Clone, Hash)]
pub struct Hub {
    /// The operation that is under way, or the next one: 0 is the opening.
    operation: u64,
    /// The ranks that have come to it, with their values. Rank 0's own is the first.
    values: Vec<Option<i64>>,
    /// By rank; rank 0's own is not used.
    seats: Vec<Seat>,
    trial: Option<Trial>,
    last: Option<(u64, i64)>,
    verdict: Option<Verdict>,
    outgoing: Vec<(u32, Message)>,
}

impl Hub {
    /// A hub for `size` ranks, itself included, to which nobody has come yet.
    pub fn new(size: u32) -> Self {
        let size = size as usize;
        Self {
            operation: 0,
            values: vec![None; size],
            seats: vec![Seat::Empty; size],
            trial: None,
            last: None,
            verdict: None,
            outgoing: Vec::new(),
        }
    }

    /// Whether a member may take its seat: at the opening, also anew, if its first connection failed.
    pub fn expects(&self, rank: u32) -> bool {
        self.operation == 0 && rank > 0 && (rank as usize) < self.seats.len()
    }

    /// A member has come, which is its value of the opening.
    pub fn seat(&mut self, rank: u32) {
        self.seats[rank as usize] = Seat::Taken { heard: None };
        self.values[rank as usize] = Some(0);
        match &self.verdict {
            Some(verdict) => self.outgoing.push((rank, Message::Failed(verdict.clone()))),
            None => self.go_on(),
        }
    }

    /// Rank 0's own value of the next operation, whose number is returned.
    pub fn submit(&mut self, value: i64) -> u64 {
        let operation = self.operation;
        self.values[0] = Some(value);
        self.go_on();
        operation
    }

    /// How an operation of this rank ended, if it has.
    pub fn answer(&self, operation: u64) -> Option<Answer> {
        Answer::to(operation, self.last, self.verdict.as_ref())
    }

    /// Why no operation ends any more, if that is so.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// Rank 0 has waited for an operation as long as it would.
    pub fn give_up(&mut self, operation: u64, now: Instant) {
        self.try_missing(0, operation, now);
    }

    /// Rank 0 wants the end of the operation that it is at no longer.
    pub fn leave(&mut self) {
        self.fail(Fault::Left, vec![0], 0);
    }

    /// Rank 0 goes in good order.
    pub fn part(&mut self) {
        self.tell_all(&Message::Bye);
    }

    /// Takes a message of a member that has a seat.
    pub fn receive(&mut self, rank: u32, message: Message, now: Instant) {
        if let Seat::Taken { heard } = &mut self.seats[rank as usize]
            && (heard.is_some() || message == Message::Beat)
        {
            *heard = Some(now);
        }
        match message {
            Message::Value { operation, value } if operation == self.operation => {
                self.values[rank as usize] = Some(value);
                self.go_on();
            }
            Message::Late { operation } => self.try_missing(rank, operation, now),
            Message::Left => self.fail(Fault::Left, vec![rank], rank),
            Message::Bye => {
                self.seats[rank as usize] = Seat::Parted;
                self.go_on();
            }
            Message::Failed(verdict) => self.fail(verdict.fault, verdict.ranks, rank),
            _ => {}
        }
        self.judge(now);
    }

    /// The connection of a member broke, or what came over it is no message.
    pub fn lose(&mut self, rank: u32) {
        if let Seat::Taken { .. } = self.seats[rank as usize] {
            self.seats[rank as usize] = Seat::Dead;
            self.go_on();
        }
    }

    /// Judges what is due. To be called at least once a beat while an operation is under way.
    pub fn tick(&mut self, now: Instant) {
        self.judge(now);
    }

    /// Gives all members a sign of life.
    pub fn beat(&mut self) {
        self.tell_all(&Message::Beat);
    }

    /// Messages to be sent, with their ranks.
    pub fn outgoing(&mut self) -> Vec<(u32, Message)> {
        std::mem::take(&mut self.outgoing)
    }

    /// Ends the operation if all have come to it, or if one that has not never will.
    fn go_on(&mut self) {
        // A rank that has waited too long was told so: an operation on trial ends for nobody, though its last rank may
        // come yet.
        if self.verdict.is_some() || self.trial.is_some() {
            return;
        }
        if let Some(least) = self.values.iter().copied().try_fold(i64::MAX, |least, value| Some(least.min(value?))) {
            self.tell_all(&Message::Least { operation: self.operation, value: least });
            self.last = Some((self.operation, least));
            self.operation += 1;
            self.values.fill(None);
            return;
        }
        if let Some(waiting) = self.values.iter().position(Option::is_some)
            && let Some((fault, ranks)) = self.gone_among(self.missing())
        {
            self.fail(fault, ranks, waiting as u32);
        }
    }

    /// Those of some ranks that never come any more, and why.
    fn gone_among(&self, ranks: impl Iterator<Item = u32> + Clone) -> Option<(Fault, Vec<u32>)> {
        [(Seat::Dead, Fault::Dead), (Seat::Parted, Fault::Parted)].into_iter().find_map(|(seat, fault)| {
            let found: Vec<u32> = ranks.clone().filter(|&rank| self.seats[rank as usize] == seat).collect();
            (!found.is_empty()).then_some((fault, found))
        })
    }

    fn missing(&self) -> impl Iterator<Item = u32> + Clone {
        self.values.iter().zip(0..).filter(|(value, _)| value.is_none()).map(|(_, rank)| rank)
    }

    fn try_missing(&mut self, by: u32, operation: u64, now: Instant) {
        // Else the operation has ended, and the answer is on its way.
        if operation == self.operation && self.trial.is_none() && self.verdict.is_none() {
            self.trial = Some(Trial { by, missing: self.missing().collect(), begun: now });
            self.judge(now);
        }
    }

    /// Ends a trial when each of the missing ranks was heard of, or has been listened for long enough.
    fn judge(&mut self, now: Instant) {
        let Some(trial) = &self.trial else { return };
        let unheard = |&rank: &u32| match self.seats[rank as usize] {
            Seat::Taken { heard: Some(heard) } => heard <= trial.begun,
            _ => false,
        };
        let silent: Vec<u32> = trial.missing.iter().copied().filter(unheard).collect();
        if !silent.is_empty() && now < trial.begun + WATCH {
            return;
        }
        let (by, missing) = (trial.by, trial.missing.clone());
        let (fault, ranks) = match self.gone_among(missing.iter().copied()) {
            Some(gone) => gone,
            None if !silent.is_empty() => (Fault::Silent, silent),
            None if self.operation == 0 => (Fault::Absent, missing),
            None => (Fault::Late, missing),
        };
        self.fail(fault, ranks, by);
    }

    fn fail(&mut self, fault: Fault, ranks: Vec<u32>, by: u32) {
        if self.verdict.is_none() {
            self.trial = None;
            let verdict = Verdict { fault, ranks, by };
            self.tell_all(&Message::Failed(verdict.clone()));
            self.verdict = Some(verdict);
        }
    }

    fn tell_all(&mut self, message: &Message) {
        for (rank, seat) in (0..).zip(&self.seats) {
            if let Seat::Taken { .. } = seat {
                self.outgoing.push((rank, message.clone()));
            }
        }
    }
}
