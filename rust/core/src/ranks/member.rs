//! The part of every rank but 0: gives its values to the hub and takes its word for all but the hub's own death.

use std::time::Instant;

use super::message::Message;
use super::{Answer, Fault, Verdict, WATCH};

/// The rank of the hub.
const HUB: u32 = 0;

/// The state of a rank that is connected to the hub and has said hello.
#[derive(Debug, Clone, Hash)]
pub struct Member {
    rank: u32,
    /// The operation that is under way, or the next one: 0 is the opening, to which the hello belongs.
    operation: u64,
    /// When the hub was last heard of, None until it gives signs of life.
    heard: Option<Instant>,
    /// Whether the hub said goodbye.
    parted: bool,
    /// Since when this rank has waited too long, and for which operation.
    gave_up: Option<(u64, Instant)>,
    last: Option<(u64, i64)>,
    verdict: Option<Verdict>,
    outgoing: Vec<Message>,
}

impl Member {
    /// The member with a rank above 0.
    pub fn new(rank: u32) -> Self {
        Self {
            rank,
            operation: 0,
            heard: None,
            parted: false,
            gave_up: None,
            last: None,
            verdict: None,
            outgoing: Vec::new(),
        }
    }

    /// This rank's value of the next operation, whose number is returned.
    pub fn submit(&mut self, value: i64) -> u64 {
        if self.operation > 0 {
            self.outgoing.push(Message::Value { operation: self.operation, value });
        }
        self.operation
    }

    /// How an operation of this rank ended, if it has.
    pub fn answer(&self, operation: u64) -> Option<Answer> {
        Answer::to(operation, self.last, self.verdict.as_ref())
    }

    /// Why no operation ends any more, if that is so.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// This rank has waited for an operation as long as it would: the hub is asked who is to blame.
    pub fn give_up(&mut self, operation: u64, now: Instant) {
        if operation == self.operation && self.gave_up.is_none() && self.verdict.is_none() {
            self.gave_up = Some((operation, now));
            self.outgoing.push(Message::Late { operation });
        }
    }

    /// This rank wants the end of the operation that it is at no longer.
    pub fn leave(&mut self) {
        if self.verdict.is_none() {
            self.outgoing.push(Message::Left);
            self.verdict = Some(Verdict { fault: Fault::Left, ranks: vec![self.rank], by: self.rank });
        }
    }

    /// This rank goes in good order.
    pub fn part(&mut self) {
        self.outgoing.push(Message::Bye);
    }

    /// Takes a message of the hub.
    pub fn receive(&mut self, message: Message, now: Instant) {
        if self.heard.is_some() || message == Message::Beat {
            self.heard = Some(now);
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
            Message::Bye => {
                self.parted = true;
                self.fail(Fault::Parted);
            }
            _ => {}
        }
    }

    /// The connection to the hub broke, or what came over it is no message.
    pub fn lose(&mut self) {
        self.fail(Fault::Dead);
    }

    /// Judges the hub, if it owes an answer. To be called at least once a beat while an operation is under way.
    pub fn tick(&mut self, now: Instant) {
        let Some((_, since)) = self.gave_up else { return };
        // The hub answers at once, or after it has listened for others; it is itself listened for as long as they.
        let heard = self.heard.is_some_and(|heard| heard > since);
        let patience = if heard { 2 * WATCH } else { WATCH };
        if now >= since + patience && self.verdict.is_none() {
            self.fail(if self.heard.is_none() || heard { Fault::Late } else { Fault::Silent });
            self.outgoing.extend(self.verdict.clone().map(Message::Failed));
        }
    }

    /// Gives the hub a sign of life.
    pub fn beat(&mut self) {
        self.outgoing.push(Message::Beat);
    }

    /// Messages to be sent to the hub.
    pub fn outgoing(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.outgoing)
    }

    fn fail(&mut self, fault: Fault) {
        self.verdict.get_or_insert(Verdict { fault, ranks: vec![HUB], by: self.rank });
    }
}
