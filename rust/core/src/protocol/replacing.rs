//! Replaces children that have died: decides which places are taken, when to give up, and what the new children do
//! first.
//!
//! Without a dispatching process a worker is replaced alone. With one, all children are replaced together, because
//! items of the others were in their memory alone.

/// Deaths of one child at one item after which the loader gives up.
pub const TRIES: usize = 3;

/// The deaths of one child since it made progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Deaths {
    /// The epoch, and how many items were received.
    at: (u32, u64),
    /// The process that died last.
    process: Option<u64>,
    count: usize,
}

/// The verdict on a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// How many processes have died at this item.
    pub deaths: usize,
    /// Whether the death of this process was not judged before.
    pub is_new: bool,
}

impl Verdict {
    /// Whether no other process is to try that item.
    pub fn is_final(self) -> bool {
        self.deaths >= TRIES
    }
}

/// The places of the children, the dispatching process last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replacing {
    workers: usize,
    dispatches: bool,
    resting: Vec<bool>,
    deaths: Vec<Deaths>,
    /// Whether workers may still read dispatched items, though main has everything: they repeat the epoch.
    repeating: bool,
}

impl Replacing {
    /// The places of so many workers, and of a dispatching process if there is one.
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

    /// Notes that an epoch begins: children that rested are wanted again.
    pub fn begin(&mut self) {
        self.resting.fill(false);
        self.repeating = false;
    }

    /// Whether a child has died, and is not wanted any more in this epoch.
    pub fn rests(&self, child: usize) -> bool {
        self.resting[child]
    }

    /// The children whose places are to be taken; the others of the dead rest.
    ///
    /// `ended` says by worker whether main has all its items of the epoch. With dispatching the dead are wanted even if
    /// it has all of everybody, as long as somebody repeats the epoch: who starves there would obey nothing.
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

    /// Judges the death of a process in a place that is wanted.
    ///
    /// Deaths count as long as nothing was received between them. `received` says by worker how many items were;
    /// `halted`, that nobody is to make items, so that the process has not tried.
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

    /// The number of the item, counted from 0 in the epoch, at which a child was.
    pub fn item_of(&self, child: usize, received: &[u64]) -> u64 {
        if child < self.workers { received[child] } else { received.iter().sum() }
    }

    /// Whether the child that takes the place repeats an epoch of which main has everything, instead of running it.
    pub fn repeats(&mut self, child: usize, ended: &[bool]) -> bool {
        let repeats = child < self.workers && ended[child];
        self.repeating |= repeats && self.dispatches;
        repeats
    }

    /// Whether those that take places run the rest of the epoch before this one first, for what outlives it.
    ///
    /// `outlives` says whether something in the graphs outlives epochs, `begins` whether one of them has no snapshot of
    /// the present epoch, which would hold that.
    pub fn repeats_earlier(outlives: bool, begins: bool) -> bool {
        outlives && begins
    }
}

#[cfg(test)]
mod tests {
    use super::{Replacing, TRIES};

    #[test]
    fn a_worker_is_replaced_alone_and_rests_once_main_has_all_of_it() {
        let mut replacing = Replacing::new(3, false);
        assert_eq!(replacing.wanted(&[0, 2], &[false, false, true]), [0]);
        assert_eq!([0, 1, 2].map(|child| replacing.rests(child)), [false, false, true]);
        replacing.begin();
        assert!(!replacing.rests(2), "the next epoch wants it");
    }

    #[test]
    fn with_dispatching_all_are_replaced_as_long_as_one_worker_has_not_ended() {
        let mut replacing = Replacing::new(2, true);
        assert_eq!(replacing.wanted(&[], &[false, false]), []);
        assert_eq!(replacing.wanted(&[2], &[true, false]), [0, 1, 2]);
        assert!(!(0..3).any(|child| replacing.rests(child)));
        assert_eq!(replacing.wanted(&[0, 2], &[true, true]), []);
        assert_eq!([0, 1, 2].map(|child| replacing.rests(child)), [true, false, true]);
    }

    #[test]
    fn who_repeats_an_epoch_is_not_left_without_the_dispatching_process() {
        let mut replacing = Replacing::new(2, true);
        assert!(replacing.repeats(0, &[true, false]));
        assert_eq!(replacing.wanted(&[2], &[true, true]), [0, 1, 2]);
        assert!(!replacing.rests(2));
        replacing.begin();
        assert_eq!(replacing.wanted(&[2], &[true, true]), []);
        let mut alone = Replacing::new(1, false);
        assert!(alone.repeats(0, &[true]));
        assert_eq!(alone.wanted(&[0], &[true]), [], "nobody waits for it");
    }

    #[test]
    fn deaths_count_at_one_item_of_one_epoch_and_each_process_once() {
        let mut replacing = Replacing::new(2, true);
        let mut judge = |process, epoch, received: [u64; 2]| {
            let verdict = replacing.judge(0, process, epoch, &received, false);
            (verdict.deaths, verdict.is_new, verdict.is_final())
        };
        assert_eq!(judge(7, 1, [4, 9]), (1, true, false));
        assert_eq!(judge(7, 1, [4, 9]), (1, false, false), "the same death, judged again");
        assert_eq!(judge(8, 1, [4, 10]), (2, true, false), "items of others are no progress");
        assert_eq!(judge(9, 1, [5, 10]), (1, true, false), "an item was received");
        assert_eq!(judge(10, 2, [5, 10]), (1, true, false), "another epoch");
        assert_eq!(judge(11, 2, [5, 10]), (2, true, false));
        assert_eq!(judge(12, 2, [5, 10]), (TRIES, true, true));
    }

    #[test]
    fn the_dispatching_process_makes_progress_with_any_item() {
        let mut replacing = Replacing::new(2, true);
        assert_eq!(replacing.item_of(2, &[4, 9]), 13);
        assert_eq!(replacing.judge(2, 1, 1, &[4, 9], false).deaths, 1);
        assert_eq!(replacing.judge(2, 2, 1, &[4, 9], false).deaths, 2);
        assert_eq!(replacing.judge(2, 3, 1, &[4, 10], false).deaths, 1);
    }

    #[test]
    fn a_process_that_dies_while_all_are_halted_has_not_tried() {
        let mut replacing = Replacing::new(1, false);
        for process in 0..5 {
            assert_eq!(replacing.judge(0, process, 1, &[3], true).deaths, 1);
        }
        assert_eq!(replacing.judge(0, 9, 1, &[3], false).deaths, 2, "then it tries");
    }

    #[test]
    fn an_epoch_of_which_main_has_all_items_is_repeated_by_workers_alone() {
        let mut replacing = Replacing::new(2, true);
        assert_eq!([0, 1, 2].map(|child| replacing.repeats(child, &[true, false])), [true, false, false]);
        let table = [(false, false), (false, true), (true, false), (true, true)];
        let repeated = table.map(|(outlives, begins)| Replacing::repeats_earlier(outlives, begins));
        assert_eq!(repeated, [false, false, false, true]);
    }
}
