//! Records the functions that the main process applies to the graphs of all children, so that a replacement child
//! applies them in the same order and between the same items.
//!
//! A replacement recomputes some items. A function that changes the graph must be applied between the same two items as
//! in the previous child. Therefore a child acknowledges a function together with the number of items that it has
//! computed. It acknowledges before it continues. If a worker exits without an acknowledgement, the main process has no
//! item that was computed after the function, so the function can be applied after the last received item. For a
//! dispatching process that exits without an acknowledgement, the position is unknown.
//!
//! Functions are never skipped or merged, because their effects are unknown.

/// The position of a child that runs no epoch: after all items.
pub const BETWEEN: u64 = 1 << 47;
/// An unknown position.
pub const UNTOLD: u64 = BETWEEN + 1;

/// Where a child has applied a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Met {
    /// The function was not sent to the child.
    #[default]
    Unconcerned,
    /// The function was sent, but the position of the child is unknown.
    Told,
    /// The child applied it after this number of items.
    Behind(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Noted {
    number: u64,
    met: Vec<Met>,
}

/// The epochs for which functions are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Period {
    /// The previous epoch, which may be repeated.
    Earlier,
    /// The current epoch.
    Now,
}

/// The functions of one loader.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Calls {
    children: usize,
    /// The number of the last function, counted from 1.
    number: u64,
    /// Functions of epochs that cannot be repeated, of the previous epoch while it may be repeated, and of the current
    /// epoch.
    before: Vec<Noted>,
    earlier: Vec<Noted>,
    now: Vec<Noted>,
}

impl Calls {
    /// Creates an empty record for this number of children.
    pub fn new(children: usize) -> Self {
        Self { children, number: 0, before: Vec::new(), earlier: Vec::new(), now: Vec::new() }
    }

    /// Begins an epoch. `again` is true if the previous epoch may be repeated. All children must be settled.
    pub fn begin(&mut self, again: bool) {
        self.before.append(&mut self.earlier);
        let last = std::mem::take(&mut self.now);
        if again {
            self.earlier = last;
        } else {
            self.before.extend(last);
        }
    }

    /// Records a function that will be sent next, and returns its number. All children must have applied the functions
    /// before it.
    pub fn note(&mut self) -> u64 {
        self.number += 1;
        self.now.push(Noted { number: self.number, met: vec![Met::default(); self.children] });
        self.number
    }

    fn noted(&mut self, number: u64) -> Option<&mut Noted> {
        self.now.iter_mut().find(|noted| noted.number == number)
    }

    /// Records that a function of this epoch is sent to a child.
    pub fn tell(&mut self, number: u64, child: usize) {
        if let Some(noted) = self.noted(number)
            && noted.met[child] == Met::Unconcerned
        {
            noted.met[child] = Met::Told;
        }
    }

    /// Records that a child has exited and is not needed again in this epoch. Its replacement in the next epoch will
    /// apply the function.
    pub fn rest(&mut self, number: u64, child: usize) {
        if let Some(noted) = self.noted(number) {
            noted.met[child] = Met::Behind(BETWEEN);
        }
    }

    /// Returns the functions of this epoch that were sent to a child and have an unknown position.
    pub fn unsettled(&self, child: usize) -> Vec<u64> {
        self.now.iter().filter(|noted| noted.met[child] == Met::Told).map(|noted| noted.number).collect()
    }

    /// Records that a child has acknowledged a function of this epoch at this position.
    ///
    /// A replacement child immediately applies all functions that the previous child applied later in its run.
    /// Therefore it has applied all earlier functions at this position or before.
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

    /// Records that a worker has ended after `received` items, so it applied all other functions after them.
    pub fn settle_behind(&mut self, child: usize, received: u64) {
        for noted in &mut self.now {
            if noted.met[child] == Met::Told {
                noted.met[child] = Met::Behind(received);
            }
        }
    }

    /// Returns whether all positions are known at which a child applied functions of epochs that may be repeated.
    pub fn is_placed(&self, child: usize) -> bool {
        let unplaced = [Met::Told, Met::Behind(UNTOLD)];
        !self.earlier.iter().chain(&self.now).any(|noted| unplaced.contains(&noted.met[child]))
    }

    /// Returns the functions that a replacement child applies before anything else, in order.
    ///
    /// `runs` is true if an epoch runs: its functions are then applied within it. `repeats` is true if the child first
    /// repeats the end of the previous epoch, and applies the functions of that epoch within it.
    pub fn ahead(&self, child: usize, runs: bool, repeats: bool) -> Vec<u64> {
        let earlier = self.earlier.iter().filter(|_| !repeats);
        let noted = self.before.iter().chain(earlier).chain(self.now.iter().filter(|_| !runs));
        noted.filter(|noted| noted.met[child] != Met::Unconcerned).map(|noted| noted.number).collect()
    }

    /// Returns the functions that a replacement child applies within an epoch, in order, as (number of items before it,
    /// number of the function).
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

    /// Records a function that was sent to both children.
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
