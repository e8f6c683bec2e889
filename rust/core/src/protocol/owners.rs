//! The readers of dealt items, where these do not follow from the items' numbers: the record that the writer keeps, and
//! the part of it that a later run of the stream begins with.
//!
//! A writer that deals to whoever is free records each item's reader before it sends the item. So whoever has anything
//! that was made of an item finds its reader there, and a later run deals it to the same one again. Items behind the
//! record are in nobody's hands: any reader may have them.

/// One entry of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DealEntry {
    /// The next item of the pass was dealt to this reader.
    Reader(u16),
    /// The pass is over, and the next one begins.
    NextPass,
    /// From here on items are dealt in turn, and recorded no more.
    InTurn,
}

const NEXT_PASS: u16 = u16::MAX;
const IN_TURN: u16 = u16::MAX - 1;

impl DealEntry {
    /// As it stands in memory and in states; never 0.
    pub const fn raw(self) -> u16 {
        match self {
            Self::Reader(reader) => reader + 1,
            Self::NextPass => NEXT_PASS,
            Self::InTurn => IN_TURN,
        }
    }

    /// The entry that stands so; None if it is none of so many readers.
    pub fn from_raw(raw: u16, readers: usize) -> Option<Self> {
        match raw {
            NEXT_PASS => Some(Self::NextPass),
            IN_TURN => Some(Self::InTurn),
            0 => None,
            _ => (usize::from(raw) <= readers).then(|| Self::Reader(raw - 1)),
        }
    }
}

/// A part of the record, up to its end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Owners {
    /// The position of its first entry. In the first pass positions are the numbers of the items.
    pub since: u64,
    /// The entries.
    pub entries: Vec<DealEntry>,
}

impl Owners {
    /// The entries from a position on. In turn they go on without end.
    pub fn from(&self, position: u64) -> Vec<DealEntry> {
        let skipped = usize::try_from(position.saturating_sub(self.since)).unwrap_or(usize::MAX);
        match self.entries.get(skipped..) {
            Some(rest) if !rest.is_empty() => rest.to_vec(),
            _ => self.entries.last().copied().filter(|&last| last == DealEntry::InTurn).into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DealEntry, Owners};

    #[test]
    fn entries_are_read_as_they_were_written_and_others_are_refused() {
        for owner in [DealEntry::Reader(0), DealEntry::Reader(4), DealEntry::NextPass, DealEntry::InTurn] {
            assert_eq!(DealEntry::from_raw(owner.raw(), 5), Some(owner));
        }
        assert_eq!(DealEntry::from_raw(DealEntry::Reader(5).raw(), 5), None);
        assert_eq!(DealEntry::from_raw(0, 5), None, "wiped memory is no entry");
    }

    #[test]
    fn a_part_of_the_record_goes_to_its_end_or_on_in_turn() {
        let readers = vec![DealEntry::Reader(1), DealEntry::Reader(0)];
        let free = Owners { since: 5, entries: readers.clone() };
        assert_eq!([free.from(5).len(), free.from(6).len(), free.from(7).len(), free.from(9).len()], [2, 1, 0, 0]);
        let in_turn = Owners { since: 5, entries: [readers, vec![DealEntry::InTurn]].concat() };
        assert_eq!(in_turn.from(6), [DealEntry::Reader(0), DealEntry::InTurn]);
        assert_eq!(in_turn.from(99), [DealEntry::InTurn]);
    }
}
