//! The prefetch queue: order, bounds, pausing, closing, errors and snapshots, alone and between threads.

#![cfg(not(loom))]

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::watchdog;
use proptest::prelude::*;
use torchdata_core::queue::ordered::{Buffered, Pop, PrefetchQueue, Reserve};

type Queue = PrefetchQueue<usize, &'static str>;

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(20);

fn eventually(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "the condition did not come true in time");
        thread::yield_now();
    }
}

/// Makes `count` items in a thread, counting them, until somebody closes.
fn produce(queue: &Arc<Queue>, count: usize) -> (Arc<AtomicUsize>, thread::JoinHandle<()>) {
    let (queue, made) = (Arc::clone(queue), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&made);
    let thread = thread::spawn(move || {
        for item in 0..count {
            while match queue.reserve(LONG) {
                Reserve::Granted => false,
                Reserve::TimedOut => true,
                Reserve::Closed => return,
            } {}
            counter.fetch_add(1, Ordering::SeqCst);
            queue.commit(Ok(item));
        }
        queue.finish();
    });
    (made, thread)
}

#[test]
fn items_arrive_in_order_and_then_the_end() {
    let _watchdog = watchdog(60);
    for capacity in [1, 2, 10] {
        let queue = Arc::new(Queue::new(capacity));
        let (_, producer) = produce(&queue, 5_000);
        for item in 0..5_000 {
            assert_eq!(queue.pop(LONG), Pop::Item(item));
        }
        assert_eq!(queue.pop(LONG), Pop::Ended);
        assert_eq!(queue.pop(LONG), Pop::Ended);
        producer.join().unwrap();
    }
}

#[test]
fn the_producer_is_never_more_than_the_capacity_ahead() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(3));
    let (made, producer) = produce(&queue, 100);
    for taken in 0..100 {
        eventually(|| made.load(Ordering::SeqCst) == (taken + 3).min(100));
        assert_eq!(queue.pop(LONG), Pop::Item(taken));
    }
    producer.join().unwrap();
}

#[test]
fn an_error_comes_at_its_place_and_ends_the_stream() {
    let queue = Queue::new(4);
    queue.push(Ok(1)).unwrap();
    queue.push(Err("broken")).unwrap();
    assert_eq!(queue.push(Ok(2)), Err(Ok(2)), "nothing is taken after an error");
    assert_eq!(queue.pop(NOW), Pop::Item(1));
    assert_eq!(queue.pop(NOW), Pop::Error("broken"));
    assert_eq!(queue.pop(NOW), Pop::Ended);
}

#[test]
fn closing_frees_a_producer_that_waits_for_room() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(1));
    let (made, producer) = produce(&queue, 10);
    eventually(|| made.load(Ordering::SeqCst) == 1);
    queue.close();
    producer.join().unwrap();
    assert_eq!(queue.pop(LONG), Pop::Ended);
}

#[test]
fn an_item_that_was_being_made_while_the_queue_closed_is_kept_for_the_snapshot() {
    let queue = Queue::new(2);
    assert_eq!(queue.reserve(NOW), Reserve::Granted);
    queue.close();
    assert!(!queue.wait_parked(NOW));
    queue.commit(Ok(7));
    assert!(queue.wait_parked(NOW));
    assert_eq!(queue.snapshot(|&item| item, |&error| error), Buffered { items: vec![7], error: None });
    assert_eq!(queue.reserve(NOW), Reserve::Closed);
}

#[test]
fn a_hold_waits_for_the_item_in_the_making_and_gives_up_in_time() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(2));
    assert_eq!(queue.reserve(NOW), Reserve::Granted);
    let still = queue.hold();
    assert!(!still.wait(Duration::from_millis(5)));
    let waiting = thread::spawn({
        let queue = Arc::clone(&queue);
        move || queue.hold().wait(LONG)
    });
    queue.commit(Ok(1));
    assert!(waiting.join().unwrap());
    assert!(queue.is_held());
    assert_eq!(queue.reserve(Duration::from_millis(5)), Reserve::TimedOut);
    assert_eq!(queue.pop(NOW), Pop::Item(1), "what is buffered can be read while it is held");
    assert_eq!(queue.pop(Duration::from_millis(5)), Pop::TimedOut);
    drop(still);
    assert_eq!(queue.reserve(NOW), Reserve::Granted);
}

#[test]
fn the_producer_goes_on_behind_the_last_of_several_holds() {
    let queue = Queue::new(2);
    let (first, second) = (queue.hold(), queue.hold());
    drop(first);
    assert!(queue.is_held());
    assert_eq!(queue.reserve(NOW), Reserve::TimedOut, "the other one still counts on it");
    drop(second);
    assert_eq!(queue.reserve(NOW), Reserve::Granted);
}

#[test]
fn a_parked_producer_is_not_waited_for_and_keeps_its_place() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(1));
    assert_eq!(queue.reserve(NOW), Reserve::Granted);
    let still = queue.hold();
    queue.park();
    assert!(still.wait(LONG));
    assert_eq!(queue.snapshot(|&item| item, |&error| error), Buffered { items: vec![], error: None });
    queue.commit(Ok(1));
    assert_eq!(queue.pop(NOW), Pop::Item(1));
    assert_eq!(queue.reserve(Duration::from_millis(5)), Reserve::TimedOut, "still held");
}

#[test]
fn a_hold_amid_a_stream_shows_every_item_made_and_loses_none() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(4));
    let (made, producer) = produce(&queue, 2_000);
    for taken in 0..2_000 {
        if taken % 7 == 0 {
            let still = queue.hold();
            assert!(still.wait(LONG));
            let buffered = queue.snapshot(|&item| item, |&error| error);
            assert_eq!(buffered.items, (taken..made.load(Ordering::SeqCst)).collect::<Vec<_>>());
        }
        assert_eq!(queue.pop(LONG), Pop::Item(taken));
    }
    assert_eq!(queue.pop(LONG), Pop::Ended);
    producer.join().unwrap();
}

#[test]
fn restored_items_come_first_and_a_restored_error_keeps_the_producer_out() {
    let queue = Queue::new(1);
    queue.restore([1, 2, 3], Some("broken"));
    assert_eq!(queue.len(), 4);
    assert_eq!(queue.reserve(NOW), Reserve::Closed);
    for item in 1..=3 {
        assert_eq!(queue.pop(NOW), Pop::Item(item));
    }
    assert_eq!(queue.pop(NOW), Pop::Error("broken"));
}

#[test]
fn draining_takes_all_and_remembers_the_end() {
    let queue = Queue::new(3);
    queue.push(Ok(1)).unwrap();
    queue.push(Ok(2)).unwrap();
    assert_eq!(queue.drain().items, [1, 2]);
    assert!(queue.is_empty());
    queue.push(Ok(3)).unwrap();
    queue.finish();
    assert_eq!(queue.drain().items, [3]);
    assert_eq!(queue.pop(NOW), Pop::Ended);
}

#[test]
fn memory_follows_what_is_buffered_and_not_the_capacity() {
    let queue = Queue::new(usize::MAX);
    queue.push(Ok(1)).unwrap();
    queue.push(Ok(2)).unwrap();
    assert_eq!((queue.capacity(), queue.len()), (usize::MAX, 2));
    assert_eq!((queue.pop(NOW), queue.pop(NOW), queue.pop(NOW)), (Pop::Item(1), Pop::Item(2), Pop::TimedOut));
}

#[test]
fn the_longest_wait_that_there_is_ends_with_what_is_waited_for() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(1));
    let (_, producer) = produce(&queue, 1);
    assert_eq!(queue.pop(Duration::MAX), Pop::Item(0));
    let still = queue.hold();
    assert!(still.wait(Duration::MAX));
    assert_eq!(queue.reserve(Duration::MAX), Reserve::Closed);
    producer.join().unwrap();
}

#[test]
fn waiting_takes_nothing_out_and_says_whether_there_is_something() {
    let queue = Queue::new(2);
    assert!(!queue.wait_filled(Duration::from_millis(5)));
    queue.push(Ok(1)).unwrap();
    assert!(queue.wait_filled(NOW));
    assert_eq!(queue.len(), 1);
    assert_eq!(queue.try_pop(), Pop::Item(1));
    queue.finish();
    assert!(queue.wait_filled(NOW));
    assert_eq!(queue.try_pop(), Pop::Ended);
    assert!(queue.wait_filled(NOW), "the end stays");
}

#[test]
fn closing_frees_a_consumer_that_waits_for_an_item() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(1));
    let waiting = thread::spawn({
        let queue = Arc::clone(&queue);
        move || queue.pop(Duration::MAX)
    });
    queue.close();
    assert_eq!(waiting.join().unwrap(), Pop::Ended);
}

#[test]
fn looking_at_all_that_is_buffered_stops_where_it_is_told() {
    let queue = Queue::new(2);
    queue.restore([1, 2, 3], Some("broken"));
    let mut seen = Vec::new();
    let stopped = queue.try_for_each(|content| {
        seen.push(content.copied().map_err(|&error| error));
        if seen.len() == 2 { Err("enough") } else { Ok(()) }
    });
    assert_eq!((stopped, seen), (Err("enough"), vec![Ok(1), Ok(2)]));
    assert_eq!(queue.try_for_each(|content| content.map(drop).map_err(|&error| error)), Err("broken"));
    assert_eq!(queue.len(), 4);
}

#[derive(Debug, Clone)]
enum Step {
    Push,
    Pop,
    Hold,
    LetGo(usize),
    Snapshot,
    Drain,
    Fail,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Push),
        8 => Just(Step::Pop),
        1 => Just(Step::Hold),
        2 => any::<usize>().prop_map(Step::LetGo),
        2 => Just(Step::Snapshot),
        1 => Just(Step::Drain),
        1 => Just(Step::Fail),
        1 => Just(Step::Close),
    ]
}

proptest! {
    #[test]
    fn any_sequence_of_calls_agrees_with_a_plain_model(
        capacity in 1usize..5,
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let queue = Queue::new(capacity);
        let mut model: VecDeque<Result<usize, &str>> = VecDeque::new();
        let (mut made, mut failed, mut closed, mut ended) = (0, false, false, false);
        let mut holds = Vec::new();
        for step in steps {
            match step {
                Step::Push | Step::Fail => {
                    let item = if matches!(step, Step::Fail) { Err("broken") } else { Ok(made) };
                    let expected = if closed || failed {
                        Reserve::Closed
                    } else if !holds.is_empty() || model.len() >= capacity {
                        Reserve::TimedOut
                    } else {
                        Reserve::Granted
                    };
                    prop_assert_eq!(queue.reserve(NOW), expected);
                    if expected == Reserve::Granted {
                        queue.commit(item);
                        failed = item.is_err();
                        model.push_back(item);
                        made += 1;
                    }
                }
                Step::Pop => {
                    let expected = if ended || closed {
                        Pop::Ended
                    } else {
                        match model.pop_front() {
                            Some(Ok(item)) => Pop::Item(item),
                            Some(Err(error)) => {
                                ended = true;
                                Pop::Error(error)
                            }
                            None => Pop::TimedOut,
                        }
                    };
                    prop_assert_eq!(queue.pop(NOW), expected);
                }
                Step::Hold => {
                    let still = queue.hold();
                    prop_assert!(still.wait(NOW));
                    holds.push(still);
                }
                Step::LetGo(which) => drop((!holds.is_empty()).then(|| holds.swap_remove(which % holds.len()))),
                Step::Snapshot | Step::Drain => {
                    let expected = Buffered {
                        items: model.iter().filter_map(|item| item.ok()).collect(),
                        error: model.iter().find_map(|item| item.err()),
                    };
                    if matches!(step, Step::Snapshot) {
                        prop_assert_eq!(queue.snapshot(|&item| item, |&error| error), expected);
                    } else {
                        prop_assert_eq!(queue.drain(), expected);
                        model.clear();
                        ended |= failed;
                    }
                }
                Step::Close => {
                    queue.close();
                    closed = true;
                }
            }
            prop_assert_eq!(queue.len(), model.len());
        }
    }
}
