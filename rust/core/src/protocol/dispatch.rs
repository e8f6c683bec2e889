//! Selects the reader that receives the next item, and decides when an iteration over the items ends.

use super::grant::Reader;
use super::sending::Permit;
use crate::round_robin::RoundRobin;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Compute an item and send the item to the reader with this index.
    To(usize),
    /// Compute and drop the next item, because the reader with this index does not need the item.
    Skip(usize),
    /// Wait until the reader with this index accepts the next item.
    WaitFor(usize),
    /// All readers have ended the current iteration over the items.
    Nobody,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dispatch {
    pub turn: RoundRobin,
}

impl Dispatch {
    pub fn new(readers: usize) -> Self {
        Self { turn: RoundRobin::new(readers, false) }
    }

    /// Returns the next step. `permit` returns whether a reader accepts an item now.
    #[inline]
    pub fn next(&self, mut permit: impl FnMut(usize) -> Permit) -> Choice {
        let Some(target) = self.turn.next() else { return Choice::Nobody };
        match permit(target) {
            Permit::Now => Choice::To(target),
            Permit::Again => Choice::Skip(target),
            Permit::Wait => Choice::WaitFor(target),
            Permit::Unwanted if self.readers().any(|reader| permit(reader) != Permit::Unwanted) => Choice::Skip(target),
            Permit::Unwanted => Choice::Nobody,
        }
    }

    /// Returns the next step of a worker process. All shards of a worker process send their items to the same reader.
    #[inline]
    pub fn next_of_shards(&self, permit: Permit) -> Choice {
        self.next(|_| permit)
    }

    fn readers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.turn.peers()).filter(|&reader| !self.turn.is_ended(reader))
    }

    /// Returns whether a reader has requested another iteration over the items. The result is false until all readers
    /// have ended the current iteration.
    pub fn is_repeat_requested(&self, reader: impl Fn(usize) -> Reader) -> bool {
        let mut asked = false;
        for peer in 0..self.turn.peers() {
            match reader(peer) {
                Reader::Ahead => asked = true,
                Reader::Done => {}
                Reader::Earlier | Reader::Here(_) | Reader::Left => return false,
            }
        }
        asked
    }
}
