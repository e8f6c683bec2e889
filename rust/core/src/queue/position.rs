//! Tracks the position of a consumer in a source that threads read ahead.
//!
//! The position consists of a saved state of the source (the mark), and the indices of the items that the consumer has
//! received after this state. To resume, the source is restored from the saved state, and the items that the consumer
//! had received after this state are dropped.
//!
//! [`QueuePosition::spent`] collects unneeded states, which the caller drops without holding a lock, because dropping a
//! state can run Python code.

use std::collections::{BTreeMap, BTreeSet};

pub type Index = u64;

#[derive(Debug)]
pub struct QueuePosition<M> {
    /// The latest saved state of the source before the first undelivered item.
    pub mark: M,
    /// The number of delivered items from the mark to the first undelivered item.
    pub steps: u64,
    next: Index,
    /// The indices of the items that were delivered while an item with a lower index was undelivered.
    ahead: BTreeSet<Index>,
    marks: BTreeMap<Index, M>,
    pub spent: Vec<M>,
}

impl<M> QueuePosition<M> {
    /// Creates the position of a consumer that has received the first `steps` items after `mark`, and the items with
    /// the numbers in `ahead`.
    pub fn new(mark: M, steps: u64, ahead: impl IntoIterator<Item = Index>) -> Self {
        let ahead = ahead.into_iter().collect();
        Self { mark, steps, next: steps, ahead, marks: BTreeMap::new(), spent: Vec::new() }
    }

    /// Returns the number of delivered items, including items that were delivered out of order.
    pub fn received(&self) -> u64 {
        self.next + self.ahead.len() as u64
    }

    /// Returns the numbers of the items that were delivered out of order, where the first item after `mark` has the
    /// number 0.
    pub fn ahead(&self) -> impl Iterator<Item = Index> {
        let base = self.next - self.steps;
        self.ahead.iter().map(move |index| index - base)
    }

    pub fn marks(&self) -> impl Iterator<Item = &M> {
        std::iter::once(&self.mark).chain(self.marks.values()).chain(&self.spent)
    }

    /// Records that item `index` was delivered. `mark` is the state of the source after item `index`, if a state was
    /// saved.
    pub fn note(&mut self, index: Index, mark: Option<M>) {
        if index != self.next {
            self.ahead.insert(index);
            if let Some(mark) = mark {
                self.marks.insert(index, mark);
            }
            return;
        }
        self.pass(mark);
        while self.ahead.remove(&self.next) {
            let mark = self.marks.remove(&self.next);
            self.pass(mark);
        }
    }

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
}
