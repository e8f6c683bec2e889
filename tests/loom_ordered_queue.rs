//! Explores all interleavings of workers, a consumer and threads that suspend the queue. No thread may sleep forever.
//!
//! Real sleeps end after a timeout, which would hide a lost wake-up. In loom, sleeps never time out, so a lost wake-up
//! is a deadlock, which loom reports.
#![cfg(loom)]
#![allow(missing_docs)]

mod common;

use std::time::Duration;

use common::queue::{Waiting, hold};
use common::watchdog;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use torchdata_core::queue::ordered::{Claim, OrderedQueue, Outcome, Pop, Reserve};

const EVER: Duration = Duration::MAX;

/// A queue, and the number of workers that use its source: 0 or 1.
struct Shared {
    queue: OrderedQueue<usize>,
    making: AtomicUsize,
    made: AtomicUsize,
}

impl Shared {
    fn new(capacity: usize) -> Arc<Self> {
        Self::with(capacity, true)
    }

    fn with(capacity: usize, in_order: bool) -> Arc<Self> {
        let queue = OrderedQueue::new(capacity, in_order);
        Arc::new(Self { queue, making: AtomicUsize::new(0), made: AtomicUsize::new(0) })
    }

    /// Computes items until `count` is reached. Several threads may call this function.
    fn produce(&self, count: usize) {
        loop {
            let slot = match self.queue.reserve(EVER) {
                Reserve::Granted(slot) => slot,
                Reserve::Closed => return,
                Reserve::TimedOut => unreachable!("it has all the time there is"),
            };
            assert_eq!(self.making.fetch_add(1, Ordering::Relaxed), 0, "one at a time is at the source");
            let item = self.made.load(Ordering::Relaxed);
            self.made.store(item + 1, Ordering::Relaxed);
            self.making.store(0, Ordering::Relaxed);
            if item == count {
                self.queue.put(slot, Outcome::End(None));
                return;
            }
            self.queue.leave_source(slot);
            self.queue.put(slot, Outcome::Item(item));
        }
    }

    /// Takes submitted items until the queue is closed.
    fn serve(&self) {
        loop {
            self.queue.wait_claimable(EVER);
            match self.queue.try_claim(|&item| (item, true)) {
                Claim::Given(slot, item) => drop(self.queue.put(slot, Outcome::Item(item))),
                Claim::TimedOut => {}
                Claim::Closed => return,
            }
        }
    }

    /// Takes `count` items from the source, and offers each item to the other workers.
    fn hand_over(&self, count: usize) {
        let mut reserved = None;
        for item in 0..=count {
            let slot = reserved.take().or_else(|| match self.queue.reserve(EVER) {
                Reserve::Granted(slot) => Some(slot),
                Reserve::Closed => None,
                Reserve::TimedOut => unreachable!("it has all the time there is"),
            });
            let Some(slot) = slot else { return };
            if item == count {
                self.queue.put(slot, Outcome::End(None));
            } else {
                reserved = self.queue.hand_over(slot, item);
            }
        }
    }

    /// Claims up to two submitted items at a time, until the queue has no unclaimed item. The first time that two items
    /// are claimed, the second item is given back to the queue.
    fn serve_some(&self) {
        let mut gives_back = true;
        while let Some((slots, items)) = self.queue.claim_some((1, 2), 1, |_| true, std::mem::take) {
            let mut claimed: Vec<_> = slots.into_iter().zip(items).collect();
            if claimed.is_empty() {
                self.queue.wait_claimable_some(EVER);
            }
            if claimed.len() > 1 && std::mem::take(&mut gives_back) {
                self.queue.hand_back(claimed.split_off(1), |rest, item| *rest += item);
            }
            self.queue.put_some(claimed, |rest, item| Outcome::Item(rest + item));
        }
    }

    fn hold(&self) {
        let still = hold(&self.queue);
        assert!(self.queue.wait_still(EVER));
        assert_eq!(self.making.load(Ordering::Relaxed), 0, "it stands still");
        drop(still);
    }

    fn consume(&self, count: usize) {
        for item in 0..count {
            assert_eq!(self.queue.pop(EVER), Pop::Item(item));
        }
        assert_eq!(self.queue.pop(EVER), Pop::Ended);
    }
}

/// Runs `test` in all interleavings with at most this many preemptions.
fn explore(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let _watchdog = watchdog(600);
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

fn beside(shared: &Arc<Shared>, act: fn(&Shared)) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || act(&shared))
}

#[test]
fn two_threads_that_hold_the_queue_wake_each_other_and_the_producer() {
    explore(2, || {
        let shared = Shared::new(1);
        let others =
            [beside(&shared, |it| it.produce(1)), beside(&shared, Shared::hold), beside(&shared, Shared::hold)];
        shared.consume(1);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn a_producer_that_waits_for_room_or_a_hold_is_woken_when_that_ends() {
    explore(3, || {
        let shared = Shared::new(1);
        let others = [beside(&shared, |it| it.produce(2)), beside(&shared, Shared::hold)];
        shared.consume(2);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn all_sleepers_are_woken_by_closing() {
    explore(2, || {
        let shared = Shared::new(1);
        let others = [
            beside(&shared, |it| it.produce(2)),
            beside(&shared, Shared::hold),
            beside(&shared, |it| while matches!(it.queue.pop(EVER), Pop::Item(_)) {}),
        ];
        shared.queue.close();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn two_workers_share_the_source_and_both_see_the_end() {
    explore(2, || {
        let shared = Shared::new(2);
        let others = [beside(&shared, |it| it.produce(2)), beside(&shared, |it| it.produce(2))];
        shared.consume(2);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn out_of_order_the_end_follows_all_items_taken_before_it() {
    explore(2, || {
        let shared = Shared::with(2, false);
        let others = [beside(&shared, |it| it.produce(2)), beside(&shared, |it| it.produce(2))];
        let mut found = Vec::new();
        while let Pop::Item(item) = shared.queue.pop(EVER) {
            found.push(item);
        }
        found.sort_unstable();
        assert_eq!(found, [0, 1]);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn after_an_error_of_the_source_workers_wait_until_the_consumer_has_received_it() {
    explore(3, || {
        let shared = Shared::new(3);
        let other = beside(&shared, |it| {
            let Reserve::Granted(slot) = it.queue.reserve(EVER) else { unreachable!("nobody has closed") };
            it.queue.put(slot, Outcome::Break(7));
            it.produce(1);
        });
        assert_eq!(shared.queue.pop(EVER), Pop::Broken(7));
        shared.consume(1);
        other.join().unwrap();
    });
}

#[test]
fn submitted_items_find_a_worker_despite_holds() {
    explore(2, || {
        let shared = Shared::new(1);
        let others = [beside(&shared, Shared::serve), beside(&shared, Shared::hold)];
        shared.queue.submit(0);
        assert_eq!(shared.queue.pop(EVER), Pop::Item(0));
        shared.queue.close();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn two_workers_that_claim_wake_each_other() {
    explore(2, || {
        let shared = Shared::new(1);
        let others = [beside(&shared, Shared::serve), beside(&shared, Shared::serve)];
        shared.queue.submit(0);
        shared.queue.submit(1);
        assert_eq!(shared.queue.pop(EVER), Pop::Item(0));
        assert_eq!(shared.queue.pop(EVER), Pop::Item(1));
        shared.queue.close();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn items_that_are_handed_over_reach_a_claiming_worker() {
    explore(2, || {
        let shared = Shared::new(2);
        let others = [
            beside(&shared, |it| it.hand_over(2)),
            beside(&shared, Shared::serve_some),
            beside(&shared, Shared::serve_some),
        ];
        shared.consume(2);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn workers_that_hand_over_or_claim_are_woken_by_the_end_of_a_hold_and_by_closing() {
    explore(2, || {
        let shared = Shared::new(1);
        let others =
            [beside(&shared, |it| it.hand_over(2)), beside(&shared, Shared::serve_some), beside(&shared, Shared::hold)];
        assert_eq!(shared.queue.pop(EVER), Pop::Item(0));
        shared.queue.close();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}
