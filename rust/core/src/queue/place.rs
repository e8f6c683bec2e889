//! The place of a consumer whose source is read ahead: a mark of the source, and what was given after it.
//!
//! Role: items are numbered as they are taken from the source. At some of them a mark was made (a state of the source
//! after the item). The consumer notes each result that it gets, in order or not; so the place never depends on what is
//! in flight. An iteration that goes on from it reads the source from the mark again, and drops the results that were
//! given already.
//!
//! Marks that are not needed any more are collected in [`Place::spent`]: if they are Python objects, dropping one may run
//! foreign code, which must not run while a place is held.

use std::collections::{BTreeMap, BTreeSet};

/// The number of an item, from the mark with which the place began.
pub type Index = u64;

/// Where a consumer stands.
#[derive(Debug)]
pub struct Place<M> {
    mark: M,
    /// How many items after the mark were given without a gap.
    steps: u64,
    /// The number of the first item that was not given.
    next: Index,
    /// Numbers beyond it of items that were given, and marks after such. In strict order there are none.
    ahead: BTreeSet<Index>,
    marks: BTreeMap<Index, M>,
    /// Marks to be dropped.
    pub spent: Vec<M>,
}

impl<M> Place<M> {
    /// The place at which `steps` items after a mark were given, and those with the numbers `ahead`, counted from the mark.
    pub fn new(mark: M, steps: u64, ahead: impl IntoIterator<Item = Index>) -> Self {
        let ahead = ahead.into_iter().collect();
        Self { mark, steps, next: steps, ahead, marks: BTreeMap::new(), spent: Vec::new() }
    }

    /// The last mark that no item before it is missing for.
    pub fn mark(&self) -> &M {
        &self.mark
    }

    /// How many items after the mark were given without a gap.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// How many items were given, without the gap or beyond it, since the place began.
    pub fn given(&self) -> u64 {
        self.next + self.ahead.len() as u64
    }

    /// The numbers of items beyond the gap that were given, counted from the mark.
    pub fn ahead(&self) -> impl Iterator<Item = Index> {
        let base = self.next - self.steps;
        self.ahead.iter().map(move |index| index - base)
    }

    /// All marks that it holds.
    pub fn marks(&self) -> impl Iterator<Item = &M> {
        std::iter::once(&self.mark).chain(self.marks.values()).chain(&self.spent)
    }

    /// Notes that an item is given, and the mark after it if one was made.
    pub fn note(&mut self, index: Index, mark: Option<M>) {
        if index != self.next {
            self.ahead.insert(index);
            if let Some(mark) = mark {
                self.marks.insert(index, mark);
            }
            return;
        }
        self.pass(mark);
        if !self.ahead.is_empty() {
            self.pass_ahead();
        }
    }

    /// Notes the mark after an item that was given before the place began.
    pub fn note_late(&mut self, index: Index, mark: M) {
        if index >= self.next {
            self.marks.insert(index, mark);
        } else {
            let steps = self.next - index - 1;
            let nearer = steps < self.steps;
            self.spent.push(if nearer { std::mem::replace(&mut self.mark, mark) } else { mark });
            if nearer {
                self.steps = steps;
            }
        }
    }

    fn pass(&mut self, mark: Option<M>) {
        self.next += 1;
        self.steps += 1;
        if let Some(mark) = mark {
            self.spent.push(std::mem::replace(&mut self.mark, mark));
            self.steps = 0;
        }
    }

    fn pass_ahead(&mut self) {
        while self.ahead.remove(&self.next) {
            let mark = self.marks.remove(&self.next);
            self.pass(mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    fn shown(place: &Place<u64>) -> (u64, u64, Vec<u64>) {
        (*place.mark(), place.steps(), place.ahead().collect())
    }

    /// All that is given at a place, by the numbers of items from the beginning; a mark is the number of the next item.
    fn given(place: &Place<u64>) -> Vec<u64> {
        let (mark, steps, ahead) = shown(place);
        (0..mark + steps).chain(ahead.iter().map(|index| mark + index)).collect()
    }

    #[test]
    fn in_order_the_last_mark_and_the_steps_since_are_kept() {
        let mut place = Place::new(0, 0, []);
        for index in 0..7 {
            place.note(index, (index % 3 == 2).then_some(index + 1));
            assert_eq!(given(&place), (0..=index).collect::<Vec<_>>());
        }
        assert_eq!((shown(&place), place.given(), place.spent), ((6, 1, vec![]), 7, vec![0, 3]));
    }

    #[test]
    fn out_of_order_gaps_are_kept_and_closed_whatever_was_marked() {
        for marked in [[true; 4], [false; 4], [true, false, true, false], [false, true, false, true]] {
            let mut place = Place::new(0, 0, []);
            let mut seen = Vec::new();
            for index in [2, 0, 3, 1] {
                place.note(index, marked[index as usize].then_some(index + 1));
                seen.push(index);
                seen.sort_unstable();
                assert_eq!(given(&place), seen, "{marked:?}");
                assert_eq!(place.given(), seen.len() as u64);
            }
            assert_eq!(place.ahead().count(), 0);
        }
    }

    #[test]
    fn a_mark_after_an_item_that_was_given_before_brings_the_place_nearer() {
        let mut place = Place::new(0, 3, [4]);
        assert_eq!(given(&place), [0, 1, 2, 4]);
        place.note_late(1, 2);
        assert_eq!(shown(&place), (2, 1, vec![2]));
        place.note_late(0, 1);
        assert_eq!((shown(&place), &place.spent[..]), ((2, 1, vec![2]), &[0, 1][..]));
        place.note_late(4, 5);
        place.note(3, None);
        assert_eq!((shown(&place), place.given()), ((5, 0, vec![]), 5));
        assert_eq!(place.marks().count(), 1 + place.spent.len());
    }

    #[test]
    fn a_mark_that_comes_late_counts_though_the_gap_was_closed_before() {
        let mut place = Place::new(0, 0, [1]);
        place.note(0, None);
        place.note_late(1, 2);
        assert_eq!((shown(&place), given(&place)), ((2, 0, vec![]), vec![0, 1]));
    }
}
