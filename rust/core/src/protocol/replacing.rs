//! Decides which child processes are replaced when one of them exits, and when the loader gives up.
//!
//! If a loader has a dispatching process, all children are replaced after the exit of one child, because no process can
//! determine which items were lost.

/// The loader raises an error if `TRIES` processes exit at the same item.
pub const TRIES: usize = 3;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Exits {
    at: (u32, u64),
    process: Option<u64>,
    count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict {
    pub exits: usize,
    pub is_new: bool,
}

impl Verdict {
    pub fn is_final(self) -> bool {
        self.exits >= TRIES
    }
}

/// In each list of children, the dispatching process (if any) is last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replacing {
    workers: usize,
    dispatches: bool,
    resting: Vec<bool>,
    exits: Vec<Exits>,
    repeating: bool,
}

impl Replacing {
    pub fn new(workers: usize, dispatches: bool) -> Self {
        let children = workers + usize::from(dispatches);
        Self {
            workers,
            dispatches,
            resting: vec![false; children],
            exits: vec![Exits::default(); children],
            repeating: false,
        }
    }

    pub fn begin(&mut self) {
        self.resting.fill(false);
        self.repeating = false;
    }

    /// Returns whether a child has exited without being replaced in this epoch.
    pub fn rests(&self, child: usize) -> bool {
        self.resting[child]
    }

    /// Returns the children to replace after the exit of the children `exited`. `ended[i]` is true if the main process
    /// has all items of worker i.
    pub fn wanted(&mut self, exited: &[usize], ended: &[bool]) -> Vec<usize> {
        let wanted: Vec<usize> = match self.dispatches {
            true if exited.is_empty() || !self.repeating && ended.iter().all(|&ended| ended) => Vec::new(),
            true => (0..=self.workers).collect(),
            false => exited.iter().copied().filter(|&child| !ended[child]).collect(),
        };
        for &child in exited {
            self.resting[child] |= !wanted.contains(&child);
        }
        wanted
    }

    /// Records that a child has exited, and counts the successive processes that have exited at the same item. If the
    /// child exited while it was paused (`halted`), it was computing no item, so the count restarts.
    pub fn judge(&mut self, child: usize, process: u64, epoch: u32, received: &[u64], halted: bool) -> Verdict {
        let at = (epoch, self.item_of(child, received));
        let exits = &mut self.exits[child];
        if halted || exits.at != at {
            *exits = Exits { at, ..Exits::default() };
        }
        let is_new = exits.process != Some(process);
        exits.process = Some(process);
        exits.count += usize::from(is_new);
        Verdict { exits: exits.count, is_new }
    }

    /// Returns the number of the item that the child was computing when it exited.
    pub fn item_of(&self, child: usize, received: &[u64]) -> u64 {
        if child < self.workers { received[child] } else { received.iter().sum() }
    }

    /// Returns true if the main process has already received all items of a child. The child's replacement then sends
    /// no items, and only restores the child's state.
    pub fn repeats(&mut self, child: usize, ended: &[bool]) -> bool {
        let repeats = child < self.workers && ended[child];
        self.repeating |= repeats && self.dispatches;
        repeats
    }
}
