//! Decides to which reader a writer of several links sends the next item, and when a pass ends.

use super::grant::Reader;
use super::sending::Permit;
use crate::round_robin::RoundRobin;

/// The next step of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Deal {
    /// Compute an item and send it to this reader.
    To(usize),
    /// Compute an item and drop it. It belongs to this reader, which does not want it or already has it. Other readers
    /// still want items.
    Skip(usize),
    /// Wait for this reader, because it has the turn.
    WaitFor(usize),
    /// All readers have left this pass.
    Nobody,
}

/// The turns of the readers. The order does not depend on what the readers do, so the number of an item alone
/// determines its reader.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dealing {
    turn: RoundRobin,
}

impl Dealing {
    /// Creates the turns for this number of readers.
    pub fn new(readers: usize) -> Self {
        Self { turn: RoundRobin::new(readers, false) }
    }

    /// Begins a pass at reader 0.
    pub fn begin(&mut self) {
        self.begin_at(0);
    }

    /// Resumes a pass at this reader.
    pub fn begin_at(&mut self, reader: usize) {
        self.turn.start_at(reader);
    }

    /// The reader that has the turn, or None if all have received their end.
    pub fn turn(&self) -> Option<usize> {
        self.turn.next()
    }

    /// Returns the next step. `permit` returns what a reader allows.
    #[inline]
    pub fn next(&self, mut permit: impl FnMut(usize) -> Permit) -> Deal {
        let Some(target) = self.turn.next() else { return Deal::Nobody };
        match permit(target) {
            Permit::Now => Deal::To(target),
            Permit::Again => Deal::Skip(target),
            Permit::Wait => Deal::WaitFor(target),
            Permit::Unwanted if self.readers().any(|reader| permit(reader) != Permit::Unwanted) => Deal::Skip(target),
            Permit::Unwanted => Deal::Nobody,
        }
    }

    /// Like `next`, for readers with separate sources, as the shards of a worker have. A reader that wants an item is
    /// served before readers that do not want one yet. This avoids a deadlock in which one reader waits for another.
    #[inline]
    pub fn next_of_shards(&mut self, mut permit: impl FnMut(usize) -> Permit) -> Deal {
        let (mut waiting, mut again) = (None, false);
        // Each reader is asked once. If a grant arrived between two questions, it would look as if all readers had
        // left.
        let target = self.turn.choose(|reader| {
            let permit = permit(reader);
            if permit == Permit::Wait {
                waiting.get_or_insert(reader);
            }
            again = permit == Permit::Again;
            again || permit == Permit::Now
        });
        match target {
            Some(target) if again => Deal::Skip(target),
            Some(target) => Deal::To(target),
            None => waiting.map_or(Deal::Nobody, Deal::WaitFor),
        }
    }

    /// The readers that have not received their end.
    pub fn readers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.turn.peers()).filter(|&reader| !self.turn.is_ended(reader))
    }

    /// Passes the turn on after an item was sent or dropped.
    #[inline]
    pub fn advance(&mut self) {
        self.turn.advance();
    }

    /// Records that a reader has received its end, or an error.
    pub fn end(&mut self, reader: usize) {
        self.turn.end(reader);
    }

    /// Returns whether a reader has received its end, or an error.
    pub fn is_ended(&self, reader: usize) -> bool {
        self.turn.is_ended(reader)
    }

    /// Returns whether the next pass should begin after the end of this one: a reader has requested it, and all readers
    /// are finished with this one.
    pub fn is_asked_again(&self, reader: impl Fn(usize) -> Reader) -> bool {
        let mut asked = false;
        for peer in 0..self.turn.peers() {
            match reader(peer) {
                Reader::Ahead => asked = true,
                Reader::Done => {}
                Reader::Behind | Reader::Here(_) | Reader::Left => return false,
            }
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::{Deal, Dealing};
    use crate::protocol::sending::Permit;

    #[test]
    fn a_shard_whose_grant_arrives_while_the_shards_are_asked_is_not_taken_for_one_that_wants_no_more() {
        let mut asked = 0;
        let deal = Dealing::new(1).next_of_shards(|_| {
            asked += 1;
            if asked == 1 { Permit::Wait } else { Permit::Now }
        });
        assert_eq!(deal, Deal::WaitFor(0));
    }
}
