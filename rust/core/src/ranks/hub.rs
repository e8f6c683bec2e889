//! The state machine of rank 0 (the hub), which collects the values of all ranks, and sends all ranks the minimum.

use std::time::Instant;

use super::message::Message;
use super::{Answer, Fault, Verdict, WATCH};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum MemberState {
    Empty,
    /// The member is connected. `received` is the time of the member's latest message, or None before the first heartbeat.
    Taken {
        received: Option<Instant>,
    },
    Parted,
    Lost,
}

/// After a timeout, the hub tests whether the missing ranks still send messages, and then decides which ranks are at
/// fault.
#[derive(Debug, Clone, Hash)]
struct Trial {
    by: u32,
    missing: Vec<u32>,
    begun: Instant,
}

/// Before calling [`Hub::receive`], callers must check the rank numbers in messages.
#[derive(Debug, Clone, Hash, Default)]
pub struct Hub {
    operation: u64,
    values: Vec<Option<i64>>,
    /// The connection to each rank. Entry i belongs to rank i, and entry 0 is unused, because rank 0 is the hub itself.
    members: Vec<MemberState>,
    trial: Option<Trial>,
    last: Option<(u64, i64)>,
    verdict: Option<Verdict>,
    outgoing: Vec<(u32, Message)>,
}

impl Hub {
    pub fn new(size: u32) -> Self {
        let size = size as usize;
        Self { values: vec![None; size], members: vec![MemberState::Empty; size], ..Self::default() }
    }

    /// Returns whether `rank` may connect now. All members must connect during operation 0.
    pub fn expects(&self, rank: u32) -> bool {
        self.operation == 0 && rank > 0 && (rank as usize) < self.members.len()
    }

    /// Records that a member has connected. Connecting also submits the member's value, 0, for the first operation.
    pub fn admit(&mut self, rank: u32) {
        self.members[rank as usize] = MemberState::Taken { received: None };
        self.values[rank as usize] = Some(0);
        match &self.verdict {
            Some(verdict) => self.outgoing.push((rank, Message::Failed(verdict.clone()))),
            None => self.proceed(),
        }
    }

    /// Submits rank 0's value for the next operation, and returns the number of this operation.
    pub fn submit(&mut self, value: i64) -> u64 {
        let operation = self.operation;
        self.values[0] = Some(value);
        self.proceed();
        operation
    }

    pub fn answer(&self, operation: u64) -> Option<Answer> {
        Answer::to(operation, self.last, self.verdict.as_ref())
    }

    pub fn give_up(&mut self, operation: u64, now: Instant) {
        self.try_missing(0, operation, now);
    }

    pub fn leave(&mut self) {
        self.fail(Fault::Left, vec![0], 0);
    }

    pub fn part(&mut self) {
        self.send_to_all(&Message::Bye);
    }

    pub fn receive(&mut self, rank: u32, message: Message, now: Instant) {
        if let MemberState::Taken { received } = &mut self.members[rank as usize]
            && (received.is_some() || message == Message::Beat)
        {
            *received = Some(now);
        }
        match message {
            Message::Value { operation, value } if operation == self.operation => {
                self.values[rank as usize] = Some(value);
                self.proceed();
            }
            Message::Late { operation } => self.try_missing(rank, operation, now),
            Message::Left => self.fail(Fault::Left, vec![rank], rank),
            Message::Bye => {
                self.members[rank as usize] = MemberState::Parted;
                self.proceed();
            }
            Message::Failed(verdict) => self.fail(verdict.fault, verdict.ranks, rank),
            _ => {}
        }
        self.tick(now);
    }

    /// Records that the connection to the member `rank` has broken, or that the member has sent invalid data.
    pub fn lose(&mut self, rank: u32) {
        if let MemberState::Taken { .. } = self.members[rank as usize] {
            self.members[rank as usize] = MemberState::Lost;
            self.proceed();
        }
    }

    pub fn beat(&mut self) {
        self.send_to_all(&Message::Beat);
    }

    pub fn outgoing(&mut self) -> Vec<(u32, Message)> {
        std::mem::take(&mut self.outgoing)
    }

    fn proceed(&mut self) {
        // After a timeout, the operation fails for all ranks, even if the last missing value arrives before the hub has
        // decided which ranks are at fault.
        if self.verdict.is_some() || self.trial.is_some() {
            return;
        }
        if let Some(least) = self.values.iter().copied().try_fold(i64::MAX, |least, value| Some(least.min(value?))) {
            self.send_to_all(&Message::Least { operation: self.operation, value: least });
            self.last = Some((self.operation, least));
            self.operation += 1;
            self.values.fill(None);
            return;
        }
        if let Some(waiting) = self.values.iter().position(Option::is_some)
            && let Some((fault, ranks)) = self.fault_among(self.missing())
        {
            self.fail(fault, ranks, waiting as u32);
        }
    }

    fn fault_among(&self, ranks: impl Iterator<Item = u32> + Clone) -> Option<(Fault, Vec<u32>)> {
        [(MemberState::Lost, Fault::Lost), (MemberState::Parted, Fault::Parted)].into_iter().find_map(
            |(member, fault)| {
                let found: Vec<u32> = ranks.clone().filter(|&rank| self.members[rank as usize] == member).collect();
                (!found.is_empty()).then_some((fault, found))
            },
        )
    }

    fn missing(&self) -> impl Iterator<Item = u32> + Clone {
        self.values.iter().zip(0..).filter(|(value, _)| value.is_none()).map(|(_, rank)| rank)
    }

    fn try_missing(&mut self, by: u32, operation: u64, now: Instant) {
        // The timeout is ignored if the operation has already ended, because its result was sent to all ranks.
        if operation == self.operation && self.trial.is_none() && self.verdict.is_none() {
            self.trial = Some(Trial { by, missing: self.missing().collect(), begun: now });
            self.tick(now);
        }
    }

    /// Decides which ranks are at fault, once every connected rank without a value has sent a message, or after the
    /// duration `WATCH`. The caller must call this method at least once per heartbeat interval.
    pub fn tick(&mut self, now: Instant) {
        let Some(trial) = &self.trial else { return };
        let is_silent = |&rank: &u32| match self.members[rank as usize] {
            MemberState::Taken { received: Some(received) } => received <= trial.begun,
            _ => false,
        };
        let silent: Vec<u32> = trial.missing.iter().copied().filter(is_silent).collect();
        if !silent.is_empty() && now < trial.begun + WATCH {
            return;
        }
        let (by, missing) = (trial.by, trial.missing.clone());
        let (fault, ranks) = match self.fault_among(missing.iter().copied()) {
            Some(found) => found,
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
            self.send_to_all(&Message::Failed(verdict.clone()));
            self.verdict = Some(verdict);
        }
    }

    fn send_to_all(&mut self, message: &Message) {
        for (rank, member) in (0..).zip(&self.members) {
            if let MemberState::Taken { .. } = member {
                self.outgoing.push((rank, message.clone()));
            }
        }
    }
}
