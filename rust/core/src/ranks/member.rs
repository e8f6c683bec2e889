//! The state machine of a rank above 0 (a member), which follows the decisions of the hub unless the hub itself fails.

use std::time::Instant;

use super::message::Message;
use super::{Answer, Fault, Verdict, WATCH};

const HUB: u32 = 0;

#[derive(Debug, Clone, Hash, Default)]
pub struct Member {
    rank: u32,
    operation: u64,
    received: Option<Instant>,
    gave_up: Option<(u64, Instant)>,
    last: Option<(u64, i64)>,
    verdict: Option<Verdict>,
    outgoing: Vec<Message>,
}

impl Member {
    pub fn new(rank: u32) -> Self {
        Self { rank, ..Self::default() }
    }

    pub fn submit(&mut self, value: i64) -> u64 {
        if self.operation > 0 {
            self.outgoing.push(Message::Value { operation: self.operation, value });
        }
        self.operation
    }

    pub fn answer(&self, operation: u64) -> Option<Answer> {
        Answer::to(operation, self.last, self.verdict.as_ref())
    }

    /// Records that this rank's wait for an operation has timed out, and asks the hub which ranks are at fault.
    pub fn give_up(&mut self, operation: u64, now: Instant) {
        if operation == self.operation && self.gave_up.is_none() && self.verdict.is_none() {
            self.gave_up = Some((operation, now));
            self.outgoing.push(Message::Late { operation });
        }
    }

    pub fn leave(&mut self) {
        if self.verdict.is_none() {
            self.outgoing.push(Message::Left);
            self.verdict = Some(Verdict { fault: Fault::Left, ranks: vec![self.rank], by: self.rank });
        }
    }

    pub fn part(&mut self) {
        self.outgoing.push(Message::Bye);
    }

    pub fn receive(&mut self, message: Message, now: Instant) {
        if self.received.is_some() || message == Message::Beat {
            self.received = Some(now);
        }
        match message {
            Message::Least { operation, value } if operation == self.operation => {
                self.last = Some((operation, value));
                self.operation += 1;
                self.gave_up = None;
            }
            Message::Failed(verdict) => {
                self.verdict.get_or_insert(verdict);
            }
            Message::Bye => self.fail(Fault::Parted),
            _ => {}
        }
    }

    /// Records that the connection to the hub has broken, or that the hub has sent invalid data.
    pub fn lose(&mut self) {
        self.fail(Fault::Lost);
    }

    /// Checks whether the hub has timed out. The caller must call this method once per heartbeat interval.
    pub fn tick(&mut self, now: Instant) {
        let Some((_, since)) = self.gave_up else { return };
        // If the hub has sent messages since this rank gave up, the hub gets twice the time, because the hub may itself
        // be waiting for missing ranks.
        let received = self.received.is_some_and(|received| received > since);
        let patience = if received { 2 * WATCH } else { WATCH };
        if now >= since + patience && self.verdict.is_none() {
            self.fail(if self.received.is_none() || received { Fault::Late } else { Fault::Silent });
            self.outgoing.extend(self.verdict.clone().map(Message::Failed));
        }
    }

    pub fn beat(&mut self) {
        self.outgoing.push(Message::Beat);
    }

    pub fn outgoing(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.outgoing)
    }

    fn fail(&mut self, fault: Fault) {
        self.verdict.get_or_insert(Verdict { fault, ranks: vec![HUB], by: self.rank });
    }
}
