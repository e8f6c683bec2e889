//! Explores with loom all interleavings of threads that sleep on a bell and threads that ring the bell.
//!
//! Sleeping threads never time out in the model, so loom reports a lost wake-up as a deadlock.
#![cfg(loom)]

mod common;

use std::time::Duration;

use common::watchdog;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use torchdata_core::sync::bell::{Bell, Parker, Wanted};
use torchdata_core::sync::cursor::{BIRTH, ConsumerCursor, ProducerCursor};
use torchdata_core::sync::primitive::{AtomicU32, AtomicU64, Ordering};

/// A model of the kernel's futex: no wake-up can occur between comparing the value and starting to sleep.
struct Futex {
    lock: Mutex<()>,
    changed: Condvar,
}

impl Futex {
    fn new() -> Self {
        Self { lock: Mutex::new(()), changed: Condvar::new() }
    }
}

impl Parker for Futex {
    fn park(&self, word: &AtomicU32, seen: u32, _timeout: Duration) {
        let mut guard = self.lock.lock().unwrap();
        while word.load(Ordering::Relaxed) == seen {
            guard = self.changed.wait(guard).unwrap();
        }
    }

    fn unpark(&self, _word: &AtomicU32) {
        let _guard = self.lock.lock().unwrap();
        self.changed.notify_all();
    }
}

struct Process {
    bell: Bell,
    futex: Futex,
}

impl Process {
    fn new() -> Self {
        Self { bell: Bell::default(), futex: Futex::new() }
    }

    fn wait(&self, mut ready: impl FnMut() -> bool) {
        while !self.bell.wait(&self.futex, Duration::MAX, &mut ready) {}
    }

    fn ring(&self) {
        self.bell.ring(&self.futex);
    }
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let _watchdog = watchdog(60);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(check);
}

fn spawn<T: Send + Sync + 'static>(shared: &Arc<T>, act: impl FnOnce(&T) + Send + 'static) -> thread::JoinHandle<()> {
    let theirs = Arc::clone(shared);
    thread::spawn(move || act(&theirs))
}

fn publisher(shared: &Arc<(Process, AtomicU64)>) -> thread::JoinHandle<()> {
    spawn(shared, |theirs| {
        theirs.1.store(1, Ordering::Relaxed);
        theirs.0.ring();
    })
}

#[test]
fn a_sleeper_is_woken_by_any_publisher() {
    model(|| {
        let shared = Arc::new((Process::new(), AtomicU64::new(0)));
        let ringer = publisher(&shared);
        shared.0.wait(|| shared.1.load(Ordering::Relaxed) == 1);
        ringer.join().unwrap();
    });
}

#[test]
fn a_sleeper_whose_check_takes_the_event_does_not_keep_sleeping() {
    model(|| {
        let shared = Arc::new((Process::new(), AtomicU64::new(0)));
        let ringer = publisher(&shared);
        shared.0.wait(|| {
            let has_seen = shared.1.load(Ordering::Relaxed) == 1;
            if has_seen {
                shared.1.store(0, Ordering::Relaxed);
            }
            has_seen
        });
        ringer.join().unwrap();
    });
}

#[test]
fn a_sleeper_that_sleeps_again_is_woken_again() {
    model(|| {
        let shared = Arc::new((Process::new(), AtomicU64::new(0)));
        let ringer = spawn(&shared, |theirs| {
            for value in 1..=2 {
                theirs.1.store(value, Ordering::Relaxed);
                theirs.0.ring();
            }
        });
        for value in 1..=2 {
            shared.0.wait(|| shared.1.load(Ordering::Relaxed) >= value);
        }
        ringer.join().unwrap();
    });
}

#[test]
fn two_ringers_do_not_lose_each_others_ring() {
    model(|| {
        let shared = Arc::new((Process::new(), [AtomicU64::new(0), AtomicU64::new(0)]));
        let ringers = [0, 1].map(|index: usize| {
            spawn(&shared, move |theirs| {
                theirs.1[index].store(1, Ordering::Relaxed);
                theirs.0.ring();
            })
        });
        shared.0.wait(|| shared.1.iter().all(|flag| flag.load(Ordering::Relaxed) == 1));
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
    });
}

#[test]
fn two_sleepers_on_one_bell_are_both_woken() {
    model(|| {
        let shared = Arc::new((Process::new(), [AtomicU64::new(0), AtomicU64::new(0)]));
        let sleepers = [0, 1].map(|index: usize| {
            spawn(&shared, move |theirs| theirs.0.wait(|| theirs.1[index].load(Ordering::Relaxed) == 1))
        });
        for flag in &shared.1 {
            flag.store(1, Ordering::Relaxed);
            shared.0.ring();
        }
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        assert!(!shared.0.bell.has_sleeper(), "a thread that has left is not counted");
    });
}

#[test]
fn a_sleeper_that_leaves_does_not_consume_the_ring_of_another() {
    model(|| {
        let shared = Arc::new((Process::new(), AtomicU64::new(0)));
        // The condition of `leaver` is already true, so this thread returns without sleeping.
        let leaver = spawn(&shared, |theirs| theirs.0.wait(|| true));
        let ringer = publisher(&shared);
        shared.0.wait(|| shared.1.load(Ordering::Relaxed) == 1);
        leaver.join().unwrap();
        ringer.join().unwrap();
    });
}

#[test]
fn a_sleeper_that_waits_for_one_event_is_woken_only_for_it() {
    model(|| {
        let shared = Arc::new((Process::new(), Wanted::default(), AtomicU64::new(0)));
        let provider = spawn(&shared, |theirs| {
            theirs.2.store(1, Ordering::Relaxed);
            if theirs.1.is_raised() {
                theirs.0.ring();
            }
        });
        let look = || {
            shared.1.raise();
            shared.2.load(Ordering::Relaxed) == 1
        };
        if !look() {
            shared.0.wait(look);
        }
        shared.1.lower();
        provider.join().unwrap();
    });
}

#[test]
fn a_sleeper_that_raises_its_word_before_it_sleeps_is_woken() {
    model(|| {
        let shared = Arc::new((Process::new(), [Wanted::default(), Wanted::default()], AtomicU64::new(0)));
        shared.1[0].raise();
        let provider = spawn(&shared, |theirs| {
            theirs.2.store(1, Ordering::Relaxed);
            if theirs.0.bell.has_sleeper() && theirs.1[1].is_raised() {
                theirs.0.ring();
            }
        });
        shared.1[0].lower();
        shared.1[1].raise();
        shared.0.wait(|| shared.2.load(Ordering::Relaxed) == 1);
        provider.join().unwrap();
    });
}

#[test]
fn the_two_ends_of_a_ring_never_wait_for_each_other() {
    model(|| {
        struct Shared {
            producer: Process,
            consumer: Process,
            tail: AtomicU64,
            head: AtomicU64,
        }
        let shared = Arc::new(Shared {
            producer: Process::new(),
            consumer: Process::new(),
            tail: AtomicU64::new(BIRTH),
            head: AtomicU64::new(BIRTH),
        });
        let producer = spawn(&shared, |theirs| {
            let mut cursor = ProducerCursor::new(1);
            for _ in 0..2 {
                theirs.producer.wait(|| cursor.has_room(&theirs.head, 1).unwrap());
                cursor.publish(&theirs.tail, 1);
                theirs.consumer.ring();
            }
        });
        let mut cursor = ConsumerCursor::new(1);
        for _ in 0..2 {
            shared.consumer.wait(|| cursor.available(&shared.tail).unwrap() > 0);
            cursor.release(&shared.head, 1);
            shared.producer.ring();
        }
        producer.join().unwrap();
    });
}
