//! The writer of one link or several: to whom the next item goes, and when a pass is over.

use std::collections::VecDeque;

use super::grant::Reader;
use super::owners::{DealEntry, Owners};
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
    /// Wait for any reader.
    WaitForAny,
    /// No reader wants more of this pass.
    Nobody,
}

/// The order in which readers get items.
///
/// **In turn** the turn goes round whatever the readers do: which item is whose share depends on nothing but the item's
/// number.
///
/// **Freely** an item goes to the next reader that may have one. Items of an earlier run of the stream, whose readers are
/// known, go to these again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dealing {
    turn: RoundRobin,
    free: Option<Free>,
}

/// A stream that is dealt freely.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Free {
    /// The entries of the record ahead, from an earlier run.
    known: VecDeque<DealEntry>,
    /// The position of the next entry.
    position: u64,
    /// Whether an item was made that the earlier run did not make in this pass, or that is nobody's.
    beyond: bool,
}

impl Dealing {
    /// Deals to so many readers.
    pub fn new(readers: usize) -> Self {
        Self { turn: RoundRobin::new(readers, false), free: None }
    }

    /// Begins a pass, in turn: reader 0 has the turn.
    pub fn begin(&mut self) {
        self.begin_at(0);
    }

    /// Begins inside a pass, in turn: this reader has the turn.
    pub fn begin_at(&mut self, reader: usize) {
        self.turn.start_at(reader);
        self.free = None;
    }

    /// Begins behind so many items of the first pass, freely; `owners` are those of an earlier run.
    pub fn begin_freely(&mut self, owners: &Owners, position: u64) {
        self.turn.start();
        self.free = Some(Free { known: owners.from(position).into(), position, beyond: false });
    }

    /// Begins another pass as the last one was dealt. Returns what is to be recorded.
    pub fn begin_next(&mut self) -> Option<DealEntry> {
        self.turn.start();
        let free = self.free.as_mut()?;
        free.beyond = false;
        while let Some(owner) = free.known.pop_front() {
            free.position += 1;
            if owner == DealEntry::NextPass {
                return None;
            }
        }
        free.position += 1;
        Some(DealEntry::NextPass)
    }

    /// Returns the reader that has the turn; None once all have got their end.
    pub fn turn(&self) -> Option<usize> {
        self.turn.next()
    }

    /// Returns what to do next; `permit` tells what a reader allows.
    #[inline]
    pub fn next(&mut self, mut permit: impl FnMut(usize) -> Permit) -> Deal {
        let Some(target) = self.turn.next() else { return Deal::Nobody };
        if self.free.is_some() {
            return self.next_freely(permit);
        }
        self.next_to(target, &mut permit)
    }

    /// The step with an item that is the share of this reader.
    #[inline]
    fn next_to(&self, target: usize, permit: &mut impl FnMut(usize) -> Permit) -> Deal {
        match permit(target) {
            Permit::Now => Deal::To(target),
            Permit::Again => Deal::Skip(target),
            Permit::Wait => Deal::WaitFor(target),
            Permit::Unwanted if self.readers().any(|reader| permit(reader) != Permit::Unwanted) => Deal::Skip(target),
            Permit::Unwanted => Deal::Nobody,
        }
    }

    #[cold]
    fn next_freely(&mut self, mut permit: impl FnMut(usize) -> Permit) -> Deal {
        match self.free.as_ref().and_then(|free| free.known.front()) {
            Some(&DealEntry::Reader(reader)) => return self.next_to(reader.into(), &mut permit),
            Some(DealEntry::InTurn) => {
                self.go_on_in_turn();
                return self.next(permit);
            }
            Some(DealEntry::NextPass) | None => {}
        }
        if let Some(reader) = self.turn.choose(|reader| permit(reader) == Permit::Now) {
            return Deal::To(reader);
        }
        let (mut waits, mut again) = (false, None);
        for reader in self.readers() {
            match permit(reader) {
                // It has got leave since.
                Permit::Now | Permit::Wait => waits = true,
                Permit::Again => again = Some(reader),
                Permit::Unwanted => {}
            }
        }
        match again {
            // One that has all of this pass gets no other's item.
            _ if waits => Deal::WaitForAny,
            Some(reader) => Deal::Skip(reader),
            None => Deal::Nobody,
        }
    }

    fn go_on_in_turn(&mut self) {
        if let Some(free) = self.free.take() {
            self.turn.start_at((free.position % self.turn.peers() as u64) as usize);
        }
    }

    fn readers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.turn.peers()).filter(|&reader| !self.turn.is_ended(reader))
    }

    /// Notes that the item of this step was made. Returns what is to be recorded before the item is sent.
    #[inline]
    pub fn made(&mut self, deal: Deal) -> Option<DealEntry> {
        let free = self.free.as_mut()?;
        match (free.known.front(), deal) {
            (Some(DealEntry::Reader(_)), _) => {
                free.known.pop_front();
                free.position += 1;
                None
            }
            (None, Deal::To(reader)) => {
                free.position += 1;
                Some(DealEntry::Reader(reader as u16))
            }
            _ => {
                free.beyond = true;
                None
            }
        }
    }

    /// Whether the readers of the next items are to be recorded.
    #[inline]
    pub fn records(&self) -> bool {
        self.free.as_ref().is_some_and(|free| free.known.is_empty())
    }

    /// Deals in turn from here on, where items are dealt freely and the record has room for one entry: the one that is
    /// returned.
    pub fn cease_recording(&mut self) -> DealEntry {
        self.go_on_in_turn();
        DealEntry::InTurn
    }

    /// Whether so many items were made of this pass that positions do not tell their number: nobody can go on from
    /// here.
    pub fn is_beyond(&self) -> bool {
        self.free.as_ref().is_some_and(|free| free.beyond)
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
    use super::{Deal, DealEntry, Dealing, Owners, Permit};

    fn freely(readers: usize, since: u64, entries: &[DealEntry], position: u64) -> Dealing {
        let mut dealing = Dealing::new(readers);
        dealing.begin_freely(&Owners { since, entries: entries.to_vec() }, position);
        dealing
    }

    /// Deals an item where these are the permits; returns the step and what is recorded.
    fn step(dealing: &mut Dealing, permits: &[Permit]) -> (Deal, Option<DealEntry>) {
        let deal = dealing.next(|reader| permits[reader]);
        let recorded = match deal {
            Deal::To(_) | Deal::Skip(_) => dealing.made(deal),
            _ => None,
        };
        dealing.advance();
        (deal, recorded)
    }

    use Permit::{Again, Now, Unwanted, Wait};

    #[test]
    fn items_go_round_among_those_that_are_free() {
        let mut dealing = freely(3, 0, &[], 0);
        let to: Vec<Deal> = (0..4).map(|_| step(&mut dealing, &[Now, Wait, Now]).0).collect();
        assert_eq!(to, [Deal::To(0), Deal::To(2), Deal::To(0), Deal::To(2)]);
        assert_eq!(step(&mut dealing, &[Wait, Wait, Unwanted]), (Deal::WaitForAny, None));
        assert_eq!(step(&mut dealing, &[Wait, Now, Wait]), (Deal::To(1), Some(DealEntry::Reader(1))));
        assert_eq!(step(&mut dealing, &[Unwanted; 3]).0, Deal::Nobody);
    }

    #[test]
    fn known_items_go_to_their_readers_again_and_are_not_recorded_twice() {
        let mut dealing = freely(2, 4, &[DealEntry::Reader(0), DealEntry::Reader(1), DealEntry::Reader(1)], 5);
        assert_eq!(step(&mut dealing, &[Now, Wait]).0, Deal::WaitFor(1), "whoever else is free");
        assert_eq!(step(&mut dealing, &[Now, Again]), (Deal::Skip(1), None));
        assert_eq!(step(&mut dealing, &[Now, Unwanted]), (Deal::Skip(1), None));
        assert_eq!(step(&mut dealing, &[Wait, Now]), (Deal::To(1), Some(DealEntry::Reader(1))));
    }

    #[test]
    fn one_that_has_all_of_a_pass_gets_no_item_that_another_one_waits_for() {
        let mut dealing = freely(2, 0, &[], 0);
        assert_eq!(step(&mut dealing, &[Again, Wait]).0, Deal::WaitForAny);
        assert_eq!(step(&mut dealing, &[Again, Now]), (Deal::To(1), Some(DealEntry::Reader(1))));
        assert!(!dealing.is_beyond());
        assert_eq!(step(&mut dealing, &[Again, Unwanted]), (Deal::Skip(0), None), "up to the end of the graph");
        assert!(dealing.is_beyond());
    }

    #[test]
    fn passes_are_recorded_and_items_behind_a_known_pass_are_not() {
        let mut dealing = freely(2, 0, &[], 0);
        assert_eq!(step(&mut dealing, &[Now, Now]).1, Some(DealEntry::Reader(0)));
        assert_eq!(dealing.begin_next(), Some(DealEntry::NextPass));
        let entries = [DealEntry::Reader(0), DealEntry::NextPass, DealEntry::Reader(1)];
        let mut dealing = freely(2, 0, &entries, 0);
        assert_eq!(step(&mut dealing, &[Again, Now]), (Deal::Skip(0), None));
        assert_eq!(step(&mut dealing, &[Wait, Now]), (Deal::To(1), None));
        assert!(dealing.is_beyond());
        assert_eq!(dealing.begin_next(), None);
        assert_eq!(step(&mut dealing, &[Now, Now]), (Deal::To(1), None));
        assert!(dealing.records() && !dealing.is_beyond());
        let mut dealing = freely(2, 0, &entries, 0);
        assert_eq!(dealing.begin_next(), None, "a pass that ends earlier than before");
        assert_eq!(step(&mut dealing, &[Now, Now]).0, Deal::To(1));
    }

    #[test]
    fn a_full_record_is_followed_by_turns_that_depend_on_the_position_alone() {
        let mut dealing = freely(3, 0, &[], 0);
        let recorded: Vec<DealEntry> = (0..4).filter_map(|_| step(&mut dealing, &[Now, Wait, Wait]).1).collect();
        let mut entries = [recorded, vec![dealing.cease_recording()]].concat();
        assert!(!dealing.records());
        let mut later = freely(3, 2, &entries.split_off(2), 2);
        for _ in 0..2 {
            step(&mut later, &[Now, Wait, Wait]);
        }
        for expected in [1, 2, 0, 1] {
            assert_eq!(step(&mut dealing, &[Now; 3]), (Deal::To(expected), None));
            assert_eq!(step(&mut later, &[Now; 3]), (Deal::To(expected), None));
        }
        let mut latest = freely(3, 0, &[DealEntry::InTurn], 8);
        assert_eq!(step(&mut latest, &[Now; 3]).0, Deal::To(2));
    }
}
