//! Decides which children are replaced after a process has exited, when to give up, and what the replacements do first.
//!
//! If there is a dispatching process, one exit replaces all children, because the remaining children cannot determine
//! which items were lost.

/// The number of exits of one child at the same item after which the loader gives up.
pub const TRIES: usize = 3;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Deaths {
    /// The epoch and the number of received items at the child's last exit.
    at: (u32, u64),
    process: Option<u64>,
    count: usize,
}

/// The result of counting one exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// The number of processes that have exited while they computed the same item.
    pub deaths: usize,
    /// Whether this exit has not been counted before.
    pub is_new: bool,
}

impl Verdict {
    /// Returns whether the loader must give up instead of trying this item again.
    pub fn is_final(self) -> bool {
        self.deaths >= TRIES
    }
}

/// The state of all children. The dispatching process is the last child.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replacing {
    workers: usize,
    dispatches: bool,
    resting: Vec<bool>,
    deaths: Vec<Deaths>,
    /// Whether a worker repeats the epoch, and may need the dispatching process again.
    repeating: bool,
}

impl Replacing {
    /// Creates the state of this number of workers, and of a dispatching process if `dispatches` is true.
    pub fn new(workers: usize, dispatches: bool) -> Self {
        let children = workers + usize::from(dispatches);
        Self {
            workers,
            dispatches,
            resting: vec![false; children],
            deaths: vec![Deaths::default(); children],
            repeating: false,
        }
    }

    /// Records the beginning of an epoch. From now on, all children are needed.
    pub fn begin(&mut self) {
        self.resting.fill(false);
        self.repeating = false;
    }

    /// Returns whether a child has exited and is no longer needed in the current epoch.
    pub fn rests(&self, child: usize) -> bool {
        self.resting[child]
    }

    /// Returns the children that must be replaced. For each worker, `ended` contains whether the main process has all
    /// items of this worker. With a dispatching process, an exit replaces all children, unless the main process has all
    /// items and no worker repeats the epoch.
    pub fn wanted(&mut self, dead: &[usize], ended: &[bool]) -> Vec<usize> {
        let wanted: Vec<usize> = match self.dispatches {
            true if dead.is_empty() || !self.repeating && ended.iter().all(|&ended| ended) => Vec::new(),
            true => (0..=self.workers).collect(),
            false => dead.iter().copied().filter(|&child| !ended[child]).collect(),
        };
        for &child in dead {
            self.resting[child] |= !wanted.contains(&child);
        }
        wanted
    }

    /// Counts the exit of a process that computed its next item after `received` items. A received item resets this
    /// number of exits. If `halted` is true, all children were paused, so no item has caused the exit.
    pub fn judge(&mut self, child: usize, process: u64, epoch: u32, received: &[u64], halted: bool) -> Verdict {
        let at = (epoch, self.item_of(child, received));
        let deaths = &mut self.deaths[child];
        if halted || deaths.at != at {
            *deaths = Deaths { at, ..Deaths::default() };
        }
        let is_new = deaths.process != Some(process);
        deaths.process = Some(process);
        deaths.count += usize::from(is_new);
        Verdict { deaths: deaths.count, is_new }
    }

    /// Returns the number of the item that a child was computing.
    pub fn item_of(&self, child: usize, received: &[u64]) -> u64 {
        if child < self.workers { received[child] } else { received.iter().sum() }
    }

    /// Returns whether the main process has all items of a child, so that its replacement only has to restore the
    /// state.
    pub fn repeats(&mut self, child: usize, ended: &[bool]) -> bool {
        let repeats = child < self.workers && ended[child];
        self.repeating |= repeats && self.dispatches;
        repeats
    }
}
