//! Every interleaving of a producer, a consumer and two threads that hold the queue: nobody sleeps for ever.
//!
//! loom's sleeps have no timeout, so that a wake-up that is lost, which a slice would hide, is a deadlock, which loom reports.
#![cfg(loom)]
#![allow(missing_docs)]

mod common;

use std::time::Duration;

use common::watchdog;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use torchdata_core::queue::ordered::{Pop, PrefetchQueue, Reserve};

const EVER: Duration = Duration::MAX;

/// A queue, and how many items its producer is at: 0 or 1.
struct Shared {
    queue: PrefetchQueue<usize, ()>,
    making: AtomicUsize,
}

impl Shared {
    fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self { queue: PrefetchQueue::new(capacity), making: AtomicUsize::new(0) })
    }

    fn produce(&self, count: usize) {
        for item in 0..count {
            match self.queue.reserve(EVER) {
                Reserve::Granted => {
                    self.making.store(1, Ordering::Relaxed);
                    self.making.store(0, Ordering::Relaxed);
                    self.queue.commit(Ok(item));
                }
                Reserve::Closed => return,
                Reserve::TimedOut => unreachable!("it has all the time there is"),
            }
        }
        if self.queue.reserve(EVER) == Reserve::Granted {
            self.queue.finish();
        }
    }

    fn hold(&self) {
        let still = self.queue.hold();
        assert!(still.wait(EVER));
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

/// Runs `test` in every interleaving in which no thread is preempted more than so often.
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
fn a_producer_that_found_no_place_or_a_hold_is_woken_by_whoever_ends_that() {
    explore(3, || {
        let shared = Shared::new(1);
        let others = [beside(&shared, |it| it.produce(2)), beside(&shared, Shared::hold)];
        shared.consume(2);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn whoever_sleeps_is_woken_by_closing() {
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
