//! Tracks a consumer's position in a source that is read ahead: a snapshot (mark), and the items delivered since then.
//!
//! Only received results count, so items in progress do not affect the position. To resume, the source is restored from
//! the mark, and results that the consumer has already received are dropped.
//!
//! Dropping a mark may run arbitrary Python code, so marks that are no longer needed are collected in
//! [`QueuePosition::spent`] until the lock is released.

use std::collections::{BTreeMap, BTreeSet};

/// An item's number, counted from the first snapshot.
pub type Index = u64;

/// The position of a consumer in a source.
#[derive(Debug)]
pub struct QueuePosition<M> {
    /// The latest mark before which all items have been delivered.
    pub mark: M,
    /// The number of items after the mark that have been delivered without a gap.
    pub steps: u64,
    next: Index,
    /// The numbers of items that were delivered before an item with a lower number.
    ahead: BTreeSet<Index>,
    marks: BTreeMap<Index, M>,
    /// Unneeded snapshots, which the caller must drop.
    pub spent: Vec<M>,
}

impl<M> QueuePosition<M> {
    /// Creates a consumer's position after the first `steps` items since the snapshot `mark` and the items in `ahead`.
    pub fn new(mark: M, steps: u64, ahead: impl IntoIterator<Item = Index>) -> Self {
        let ahead = ahead.into_iter().collect();
        Self { mark, steps, next: steps, ahead, marks: BTreeMap::new(), spent: Vec::new() }
    }

    /// Returns the number of all delivered items, including items that were delivered before an earlier item.
    pub fn given(&self) -> u64 {
        self.next + self.ahead.len() as u64
    }

    /// Returns the numbers of items that were delivered before an earlier item, counted from the mark.
    pub fn ahead(&self) -> impl Iterator<Item = Index> {
        let base = self.next - self.steps;
        self.ahead.iter().map(move |index| index - base)
    }

    /// Returns all marks, including `spent`.
    pub fn marks(&self) -> impl Iterator<Item = &M> {
        std::iter::once(&self.mark).chain(self.marks.values()).chain(&self.spent)
    }

    /// Records a delivered item, and the mark (snapshot of the source) after this item if there is one.
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

    /// Records the source's snapshot after item `index`, which has already been delivered.
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
