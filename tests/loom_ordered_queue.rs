//! Explores with loom all interleavings of the queue's workers, its consumer, and threads that hold or close the queue.
//! Sleeping threads never time out in the model, so loom reports a lost wake-up as a deadlock.
#![cfg(loom)]

mod common;

use std::time::Duration;

use common::queue::{Waiting, hold};
use common::watchdog;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use torchdata_core::queue::ordered::{OrderedQueue, Outcome, Pop, Reserve};

const EVER: Duration = Duration::from_secs(3600);

struct Shared {
    queue: OrderedQueue<usize>,
    making: AtomicUsize,
    made: AtomicUsize,
}

impl Shared {
    fn new(capacity: usize, in_order: bool) -> Arc<Self> {
        let queue = OrderedQueue::new(capacity, in_order);
        Arc::new(Self { queue, making: AtomicUsize::new(0), made: AtomicUsize::new(0) })
    }

    fn produce(&self, count: usize) {
        loop {
            let slot = match self.queue.reserve(EVER) {
                Reserve::Granted(slot) => slot,
                Reserve::Closed => return,
                Reserve::TimedOut => unreachable!("the wait has no time limit"),
            };
            assert_eq!(self.making.fetch_add(1, Ordering::Relaxed), 0, "only one thread reads the source at a time");
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

    fn serve(&self) {
        while let Some((slots, items)) = self.queue.claim_some((1, 1), 1, |_| false, |&mut item| (item, true)) {
            if slots.is_empty() {
                self.queue.wait_claimable(EVER);
            }
            for (slot, item) in slots.into_iter().zip(items) {
                self.queue.put(slot, Outcome::Item(item));
            }
        }
    }

    fn hand_over(&self, count: usize) {
        let mut reserved = None;
        for item in 0..=count {
            let slot = reserved.take().or_else(|| match self.queue.reserve(EVER) {
                Reserve::Granted(slot) => Some(slot),
                Reserve::Closed => None,
                Reserve::TimedOut => unreachable!("the wait has no time limit"),
            });
            let Some(slot) = slot else { return };
            if item == count {
                self.queue.put(slot, Outcome::End(None));
            } else {
                reserved = self.queue.hand_over(slot, item);
            }
        }
    }

    fn serve_some(&self) {
        let mut gives_back = true;
        while let Some((slots, items)) =
            self.queue.claim_some((1, 2), 1, |_| true, |item| (std::mem::take(item), false))
        {
            let mut claimed: Vec<_> = slots.into_iter().zip(items).collect();
            if claimed.is_empty() {
                self.queue.wait_claimable(EVER);
            }
            if claimed.len() > 1 && std::mem::take(&mut gives_back) {
                self.queue.hand_back(claimed.split_off(1), |rest, item| *rest += item);
            }
            self.queue.put_some(claimed, |rest, item| Outcome::Item(rest + item));
        }
    }

    fn hold(&self) {
        let held = hold(&self.queue);
        assert!(self.queue.wait_idle(EVER));
        assert_eq!(self.making.load(Ordering::Relaxed), 0, "the threads are paused");
        drop(held);
    }

    fn submit(&self, count: usize) {
        (0..count).for_each(|item| self.queue.submit(item));
        (0..count).for_each(|item| assert_eq!(self.queue.pop(EVER), Pop::Item(item)));
        self.queue.close();
    }

    fn consume(&self, count: usize) {
        for item in 0..count {
            assert_eq!(self.queue.pop(EVER), Pop::Item(item));
        }
        assert_eq!(self.queue.pop(EVER), Pop::Ended);
    }
}

fn explore<const OTHERS: usize>(
    preemptions: usize,
    (capacity, in_order): (usize, bool),
    others: [fn(&Shared); OTHERS],
    main: fn(&Shared),
) {
    let _watchdog = watchdog(600);
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let shared = Shared::new(capacity, in_order);
        let others = others.map(|act| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || act(&shared))
        });
        main(&shared);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn two_threads_that_hold_the_queue_wake_each_other_and_the_producer() {
    explore(2, (1, true), [|it| it.produce(1), Shared::hold, Shared::hold], |it| it.consume(1));
}

#[test]
fn a_producer_that_waits_for_room_or_a_hold_is_woken_when_that_ends() {
    explore(3, (1, true), [|it| it.produce(2), Shared::hold], |it| it.consume(2));
}

#[test]
fn all_sleepers_are_woken_by_closing() {
    let consume = |it: &Shared| while matches!(it.queue.pop(EVER), Pop::Item(_)) {};
    explore(2, (1, true), [|it| it.produce(2), Shared::hold, consume], |it| it.queue.close());
}

#[test]
fn two_workers_share_the_source_and_both_see_the_end() {
    explore(2, (2, true), [|it| it.produce(2), |it| it.produce(2)], |it| it.consume(2));
}

#[test]
fn out_of_order_the_end_follows_all_items_taken_before_it() {
    explore(2, (2, false), [|it| it.produce(2), |it| it.produce(2)], |it| {
        let mut found = Vec::new();
        while let Pop::Item(item) = it.queue.pop(EVER) {
            found.push(item);
        }
        found.sort_unstable();
        assert_eq!(found, [0, 1]);
    });
}

#[test]
fn after_an_error_of_the_source_workers_wait_until_the_consumer_has_received_it() {
    let fail = |it: &Shared| {
        let Reserve::Granted(slot) = it.queue.reserve(EVER) else { unreachable!("the queue is open") };
        it.queue.put(slot, Outcome::Break(7));
        it.produce(1);
    };
    explore(3, (3, true), [fail], |it| {
        assert_eq!(it.queue.pop(EVER), Pop::Error(7));
        it.consume(1);
    });
}

#[test]
fn submitted_items_find_a_worker_despite_holds() {
    explore(2, (1, true), [Shared::serve, Shared::hold], |it| it.submit(1));
}

#[test]
fn two_workers_that_claim_wake_each_other() {
    explore(2, (1, true), [Shared::serve, Shared::serve], |it| it.submit(2));
}

#[test]
fn items_that_are_handed_over_reach_a_claiming_worker() {
    explore(2, (2, true), [|it| it.hand_over(2), Shared::serve_some, Shared::serve_some], |it| it.consume(2));
}

#[test]
fn workers_that_hand_over_or_claim_are_woken_by_the_end_of_a_hold_and_by_closing() {
    explore(2, (1, true), [|it| it.hand_over(2), Shared::serve_some, Shared::hold], |it| {
        assert_eq!(it.queue.pop(EVER), Pop::Item(0));
        it.queue.close();
    });
}
