//! The functions that main has had applied to the graphs of all children: which ones a child that takes the place of
//! another one meets, in which order, and behind which items.
//!
//! It makes some items again, and a function that changes what a graph does is to meet it between the same two items
//! as it met the child before it. So a child says with its acknowledgement how many items it had made. It acknowledges
//! before it goes on: of a worker that has not, main has no item that was made behind the function, and behind what was
//! received is as good a place as any. The items that the dispatching process had made before it could acknowledge are
//! not known.
//!
//! No function is left out, nor two equal ones taken for one: nobody knows what they do.

/// The place of one who runs no epoch, behind all items.
pub const BETWEEN: u64 = 1 << 47;
/// A place that cannot be told.
pub const UNTOLD: u64 = BETWEEN + 1;

/// What is known of a child and a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Met {
    /// It was not told.
    #[default]
    Unconcerned,
    /// It was told, and nobody knows where it had come.
    Told,
    /// It was behind so many items.
    Behind(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Noted {
    number: u64,
    /// By child.
    met: Vec<Met>,
}

/// The epochs of which functions are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Period {
    /// The one before, which may be run again.
    Earlier,
    /// The one that runs.
    Now,
}

/// The functions of one loader.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Calls {
    children: usize,
    /// The number of the last function, from 1.
    number: u64,
    /// Of epochs that nobody runs again; of the one before, as long as it may be run again; of the one that runs.
    before: Vec<Noted>,
    earlier: Vec<Noted>,
    now: Vec<Noted>,
}

impl Calls {
    /// None yet, for so many children.
    pub fn new(children: usize) -> Self {
        Self { children, number: 0, before: Vec::new(), earlier: Vec::new(), now: Vec::new() }
    }

    /// An epoch begins; `again` says whether the one before may be run again. All children were settled.
    pub fn begin(&mut self, again: bool) {
        self.before.append(&mut self.earlier);
        let last = std::mem::take(&mut self.now);
        if again {
            self.earlier = last;
        } else {
            self.before.extend(last);
        }
    }

    /// Notes a function that is about to be sent, and returns its number. All children have obeyed those before it.
    pub fn note(&mut self) -> u64 {
        self.number += 1;
        self.now.push(Noted { number: self.number, met: vec![Met::default(); self.children] });
        self.number
    }

    fn noted(&mut self, number: u64) -> Option<&mut Noted> {
        self.now.iter_mut().find(|noted| noted.number == number)
    }

    /// Notes that a child is told of a function of this epoch.
    pub fn tell(&mut self, number: u64, child: usize) {
        if let Some(noted) = self.noted(number)
            && noted.met[child] == Met::Unconcerned
        {
            noted.met[child] = Met::Told;
        }
    }

    /// Notes that a child is dead and not wanted any more in this epoch: the one that takes its place in the next one
    /// is told instead.
    pub fn rest(&mut self, number: u64, child: usize) {
        if let Some(noted) = self.noted(number) {
            noted.met[child] = Met::Behind(BETWEEN);
        }
    }

    /// The functions of this epoch of which a child was told, and of which it is not known where it met them.
    pub fn unsettled(&self, child: usize) -> Vec<u64> {
        self.now.iter().filter(|noted| noted.met[child] == Met::Told).map(|noted| noted.number).collect()
    }

    /// Notes that a child has acknowledged a function of this epoch behind so many items.
    ///
    /// One that had taken a place has applied at once what came later in the run of the one before it, so it has met
    /// all earlier functions there or before.
    pub fn settle(&mut self, number: u64, child: usize, place: u64) {
        let Some(position) = self.now.iter().position(|noted| noted.number == number) else { return };
        self.now[position].met[child] = Met::Behind(place);
        for noted in &mut self.now[..position] {
            noted.met[child] = match noted.met[child] {
                Met::Unconcerned => Met::Unconcerned,
                Met::Told => Met::Behind(place),
                Met::Behind(known) => Met::Behind(known.min(place)),
            };
        }
    }

    /// Notes of a worker that has ended, and of which so many items were received, that it met the rest behind those.
    pub fn settle_behind(&mut self, child: usize, received: u64) {
        for noted in &mut self.now {
            if noted.met[child] == Met::Told {
                noted.met[child] = Met::Behind(received);
            }
        }
    }

    /// Whether it is known where a child had come with each function of an epoch that may be run again.
    pub fn is_placed(&self, child: usize) -> bool {
        let unplaced = [Met::Told, Met::Behind(UNTOLD)];
        !self.earlier.iter().chain(&self.now).any(|noted| unplaced.contains(&noted.met[child]))
    }

    /// The functions that one who takes the place of a child applies before anything else, in their order.
    ///
    /// `runs` says whether an epoch runs, in which it meets those of the epoch; `repeats`, whether it runs the rest of
    /// the epoch before first, and meets that epoch's there.
    pub fn ahead(&self, child: usize, runs: bool, repeats: bool) -> Vec<u64> {
        let earlier = self.earlier.iter().filter(|_| !repeats);
        let noted = self.before.iter().chain(earlier).chain(self.now.iter().filter(|_| !runs));
        noted.filter(|noted| noted.met[child] != Met::Unconcerned).map(|noted| noted.number).collect()
    }

    /// The functions that one who takes the place of a child meets in an epoch, in their order: behind how many items,
    /// and which.
    pub fn within(&self, child: usize, period: Period) -> Vec<(u64, u64)> {
        let noted = match period {
            Period::Earlier => &self.earlier,
            Period::Now => &self.now,
        };
        let within = noted.iter().filter_map(|noted| match noted.met[child] {
            Met::Unconcerned => None,
            Met::Told => Some((BETWEEN, noted.number)),
            Met::Behind(place) => Some((place, noted.number)),
        });
        within.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{BETWEEN, Calls, Period, UNTOLD};

    /// A function of which all of two children were told.
    fn told(calls: &mut Calls) -> u64 {
        let number = calls.note();
        (0..2).for_each(|child| calls.tell(number, child));
        number
    }

    #[test]
    fn a_function_is_met_where_the_child_acknowledged_it_or_else_behind_what_was_received() {
        let mut calls = Calls::new(2);
        let number = told(&mut calls);
        assert_eq!(calls.unsettled(0), [number]);
        calls.settle(number, 0, 5);
        assert_eq!((calls.unsettled(0), calls.unsettled(1)), (vec![], vec![number]));
        calls.settle_behind(0, 9);
        calls.settle_behind(1, 7);
        assert_eq!(calls.within(0, Period::Now), [(5, number)], "what it has said holds");
        assert_eq!(calls.within(1, Period::Now), [(7, number)]);
        assert_eq!(calls.ahead(0, true, false), []);
        calls.tell(number, 0);
        assert_eq!(calls.unsettled(0), [], "to be told again changes nothing");
    }

    #[test]
    fn who_had_taken_a_place_has_applied_earlier_functions_by_then() {
        let mut calls = Calls::new(2);
        let (first, second) = (told(&mut calls), told(&mut calls));
        calls.settle(first, 0, 9);
        calls.settle(second, 0, 4);
        assert_eq!(calls.within(0, Period::Now), [(4, first), (4, second)]);
        let third = told(&mut calls);
        calls.settle(third, 0, 6);
        assert_eq!(calls.within(0, Period::Now), [(4, first), (4, second), (6, third)]);
        calls.settle(second, 1, 3);
        assert_eq!(calls.within(1, Period::Now)[..2], [(3, first), (3, second)], "the one before it was obeyed first");
    }

    #[test]
    fn one_that_was_not_told_does_not_get_it_and_one_that_rests_gets_it_first_in_the_next_epoch() {
        let mut calls = Calls::new(3);
        let number = calls.note();
        calls.tell(number, 0);
        calls.rest(number, 1);
        assert_eq!(calls.within(1, Period::Now), [(BETWEEN, number)]);
        assert_eq!(calls.within(2, Period::Now), []);
        calls.settle_behind(2, 4);
        assert_eq!(calls.within(2, Period::Now), [], "it was never told");
        let later = calls.note();
        calls.tell(later, 2);
        calls.settle(later, 2, 5);
        assert_eq!(calls.within(2, Period::Now), [(5, later)], "nor with a later one");
        calls.begin(false);
        assert_eq!([0, 1, 2].map(|child| calls.ahead(child, true, false)), [vec![number], vec![number], vec![later]]);
    }

    #[test]
    fn functions_of_earlier_epochs_come_first_and_in_their_order() {
        let mut calls = Calls::new(2);
        let first = told(&mut calls);
        calls.settle(first, 0, 1);
        assert_eq!(calls.ahead(0, false, false), [first], "no epoch runs");
        calls.begin(true);
        assert_eq!(calls.within(0, Period::Earlier), [(1, first)]);
        let second = told(&mut calls);
        calls.settle(second, 0, 2);
        assert_eq!(calls.ahead(0, true, false), [first]);
        assert_eq!(calls.ahead(0, true, true), [], "it meets that in the epoch that is run again");
        calls.begin(true);
        assert_eq!(calls.ahead(0, true, true), [first], "only the last epoch is run again");
        assert_eq!(calls.ahead(0, true, false), [first, second]);
        assert_eq!(calls.ahead(0, false, false), [first, second]);
        let third = told(&mut calls);
        calls.begin(false);
        let all = vec![first, second, third];
        assert_eq!((calls.ahead(0, true, true), calls.within(0, Period::Earlier)), (all, vec![]));
    }

    #[test]
    fn a_child_is_placed_once_all_is_known_of_epochs_that_may_be_run_again() {
        let mut calls = Calls::new(2);
        assert!(calls.is_placed(0));
        let number = told(&mut calls);
        assert!(!calls.is_placed(0));
        calls.settle(number, 0, 3);
        calls.settle(number, 1, UNTOLD);
        assert_eq!((calls.is_placed(0), calls.is_placed(1)), (true, false));
        calls.begin(true);
        assert!(!calls.is_placed(1));
        calls.begin(true);
        assert!(calls.is_placed(1), "nobody runs that epoch again");
    }
}
