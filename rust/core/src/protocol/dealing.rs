//! The writer of one link or several: to whom the next item goes, and when a pass is over.

use super::grant::Reader;
use super::sending::Permit;
use crate::round_robin::RoundRobin;

/// The next step of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Deal {
    /// Make an item and send it to this reader.
    To(usize),
    /// Make an item and drop it: it is the share of this reader, who wants no more, or has it already. Others still
    /// want theirs.
    Skip(usize),
    /// Wait for this reader, whose turn it is.
    WaitFor(usize),
    /// No reader wants more of this pass.
    Nobody,
}

/// The turn of the readers. It goes round whatever the readers do: which item is whose share depends on nothing but the
/// item's number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dealing {
    turn: RoundRobin,
}

impl Dealing {
    /// Deals to so many readers.
    pub fn new(readers: usize) -> Self {
        Self { turn: RoundRobin::new(readers, false) }
    }

    /// Begins a pass: reader 0 has the turn.
    pub fn begin(&mut self) {
        self.begin_at(0);
    }

    /// Begins inside a pass: this reader has the turn.
    pub fn begin_at(&mut self, reader: usize) {
        self.turn.start_at(reader);
    }

    /// Returns the reader that has the turn; None once all have got their end.
    pub fn turn(&self) -> Option<usize> {
        self.turn.next()
    }

    /// Returns what to do next; `permit` tells what a reader allows.
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

    /// The same for the shards of a worker, all of which have the reader of one link. It is asked once: a grant that
    /// arrives between two questions would look as if one shard's items were not wanted and another's were.
    #[inline]
    pub fn next_of_shards(&self, permit: Permit) -> Deal {
        self.next(|_| permit)
    }

    /// How many readers there are, those that have got their end included.
    pub fn count(&self) -> usize {
        self.turn.peers()
    }

    /// The readers that have not got their end.
    fn readers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.turn.peers()).filter(|&reader| !self.turn.is_ended(reader))
    }

    /// Passes the turn on, after an item was sent or dropped.
    #[inline]
    pub fn advance(&mut self) {
        self.turn.advance();
    }

    /// Notes that a reader has got its end, or the error.
    pub fn end(&mut self, reader: usize) {
        self.turn.end(reader);
    }

    /// Whether a reader has got its end, or the error.
    pub fn is_ended(&self, reader: usize) -> bool {
        self.turn.is_ended(reader)
    }

    /// Whether the next pass is to begin, after this one has ended: somebody has asked for it, and nobody can still be
    /// reading this one.
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
    fn shards_are_dealt_to_in_strict_turn_and_all_want_items_or_none() {
        let mut dealing = Dealing::new(3);
        dealing.begin_at(2);
        for target in [2, 0, 1, 2] {
            assert_eq!(dealing.next_of_shards(Permit::Wait), Deal::WaitFor(target));
            assert_eq!(dealing.next_of_shards(Permit::Now), Deal::To(target));
            dealing.advance();
        }
        assert_eq!(dealing.next_of_shards(Permit::Unwanted), Deal::Nobody);
    }
}
