//! Tests the ordered queue: order, capacity, holding and closing the queue, errors, and inspection of buffered items.

#![cfg(not(loom))]

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::queue::{Waiting, hold};
use common::watchdog;
use proptest::prelude::*;
use torchdata_core::queue::ordered::{OrderedQueue, Outcome, Pop, Reserve, View};
use torchdata_core::queue::position::QueuePosition;

type Queue = OrderedQueue<usize>;

const BROKEN: usize = 1_000_000;

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(20);

fn eventually(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "the condition was not met in time");
        thread::yield_now();
    }
}

/// Starts a thread that computes `count` items, or fewer items if the queue is closed earlier.
fn produce(queue: &Arc<Queue>, count: usize) -> (Arc<AtomicUsize>, thread::JoinHandle<()>) {
    let (queue, made) = (Arc::clone(queue), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&made);
    let thread = thread::spawn(move || {
        loop {
            let slot = match queue.reserve(LONG) {
                Reserve::Granted(slot) => slot,
                Reserve::TimedOut => continue,
                Reserve::Closed => return,
            };
            let item = counter.load(Ordering::SeqCst);
            if item == count {
                queue.put(slot, Outcome::End(None));
                return;
            }
            counter.store(item + 1, Ordering::SeqCst);
            queue.put(slot, Outcome::Item(item));
        }
    });
    (made, thread)
}

fn reserved(queue: &Queue) -> u64 {
    match queue.reserve(NOW) {
        Reserve::Granted(slot) => slot,
        other => panic!("no slot: {other:?}"),
    }
}

fn push(queue: &Queue, outcome: Outcome<usize>) {
    queue.put(reserved(queue), outcome);
}

fn claimed(queue: &Queue, busy: bool) -> (u64, usize) {
    let (slots, items) = queue.claim_some((1, 1), 1, |_| false, |&mut item| (item, busy)).expect("not closed");
    (slots[0], items[0])
}

fn buffered(queue: &Queue) -> Vec<usize> {
    let mut found = Vec::new();
    queue.for_each(|_, view| found.push(*view.content()));
    found
}

#[test]
fn results_of_several_workers_arrive_in_the_order_of_the_slots_or_as_they_are_ready() {
    let _watchdog = watchdog(60);
    for in_order in [true, false] {
        let (queue, source) = (Arc::new(Queue::new(5, in_order)), Arc::new(AtomicUsize::new(0)));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (queue, source) = (Arc::clone(&queue), Arc::clone(&source));
                thread::spawn(move || {
                    while let Reserve::Granted(slot) = queue.reserve(LONG) {
                        let item = source.load(Ordering::Relaxed); // only one worker at a time uses the source
                        source.store(item + 1, Ordering::Relaxed);
                        if item >= 2_000 {
                            queue.put(slot, Outcome::End(None));
                            return;
                        }
                        queue.leave_source(slot);
                        (0..item % 7).for_each(|_| thread::yield_now());
                        queue.put(slot, Outcome::Item(item));
                    }
                })
            })
            .collect();
        let mut found = Vec::new();
        while let Pop::Item(item) = queue.pop(LONG) {
            found.push(item);
        }
        assert_eq!(found.is_sorted(), in_order);
        found.sort_unstable();
        assert_eq!(found, (0..2_000).collect::<Vec<_>>());
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }
}

#[test]
fn increasing_the_capacity_wakes_a_worker_that_waits_for_room() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(1, true));
    let (made, producer) = produce(&queue, 3);
    eventually(|| made.load(Ordering::SeqCst) == 1);
    queue.set_capacity(4);
    eventually(|| queue.len() == 4);
    assert_eq!((queue.capacity(), queue.is_finished(), queue.pop(NOW)), (4, true, Pop::Item(0)));
    producer.join().unwrap();
}

#[test]
fn after_an_error_of_the_source_no_item_is_taken_until_the_consumer_has_received_it() {
    for in_order in [true, false] {
        let queue = Queue::new(4, in_order);
        let first = reserved(&queue);
        queue.leave_source(first);
        push(&queue, Outcome::Break(BROKEN));
        assert_eq!(queue.reserve(NOW), Reserve::TimedOut);
        assert_eq!(queue.pop(NOW), Pop::TimedOut, "it comes after the items that were taken before");
        queue.put(first, Outcome::Item(1));
        assert_eq!(queue.pop(NOW), Pop::Item(1));
        assert_eq!(queue.reserve(NOW), Reserve::TimedOut);
        assert_eq!(queue.pop(NOW), Pop::Error(BROKEN));
        push(&queue, Outcome::Item(2));
        assert_eq!(queue.pop(NOW), Pop::Item(2));
    }
}

#[test]
fn one_worker_at_a_time_uses_the_source_and_a_skipped_slot_makes_room() {
    let queue = Queue::new(2, true);
    let first = reserved(&queue);
    assert_eq!(queue.reserve(NOW), Reserve::TimedOut);
    queue.leave_source(first);
    let second = reserved(&queue);
    queue.skip(second);
    assert_eq!(queue.len(), 1);
    push(&queue, Outcome::Item(3));
    assert_eq!(queue.reserve(NOW), Reserve::TimedOut, "full");
    queue.skip(first);
    assert_eq!(queue.pop(NOW), Pop::Item(3), "the item after the skipped slot is next");
}

#[test]
fn an_item_that_is_computed_while_the_queue_is_closed_is_kept() {
    let queue = Queue::new(2, true);
    let slot = reserved(&queue);
    queue.close();
    assert!(!queue.wait_idle(NOW));
    queue.put(slot, Outcome::Item(7));
    assert!(queue.wait_idle(NOW));
    assert_eq!(buffered(&queue), [7]);
    assert_eq!(queue.reserve(NOW), Reserve::Closed);
}

#[test]
fn a_hold_waits_for_the_current_item_until_its_timeout() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(2, true));
    let slot = reserved(&queue);
    let held = hold(&queue);
    assert!(!queue.wait_idle(Duration::from_millis(5)));
    let waiting = thread::spawn({
        let queue = Arc::clone(&queue);
        move || {
            let _hold = hold(&queue);
            queue.wait_idle(LONG)
        }
    });
    queue.put(slot, Outcome::Item(1));
    assert!(waiting.join().unwrap());
    assert!(queue.is_held());
    assert_eq!(queue.reserve(Duration::from_millis(5)), Reserve::TimedOut);
    assert_eq!(queue.pop(NOW), Pop::Item(1), "buffered items can be read while the queue is paused");
    assert_eq!(queue.pop(Duration::from_millis(5)), Pop::TimedOut);
    drop(held);
    reserved(&queue);
}

#[test]
fn a_hold_does_not_wait_for_a_worker_that_has_left_the_source_and_keeps_its_slot() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(1, true));
    let slot = reserved(&queue);
    let _held = hold(&queue);
    queue.leave_source(slot);
    queue.leave_source(slot); // the second call must have no effect
    assert!(queue.wait_idle(LONG));
    assert_eq!(buffered(&queue), []);
    queue.put(slot, Outcome::Item(1));
    assert_eq!(queue.pop(NOW), Pop::Item(1));
    assert_eq!(queue.reserve(Duration::from_millis(5)), Reserve::TimedOut, "still held");
}

#[test]
fn appended_outcomes_are_first_and_an_appended_end_stops_the_producer() {
    let queue = Queue::new(1, true);
    for item in 1..=3 {
        queue.append(Outcome::Item(item));
    }
    assert_eq!(queue.reserve(NOW), Reserve::TimedOut, "over the capacity");
    queue.append(Outcome::End(Some(BROKEN)));
    assert_eq!(queue.len(), 4);
    assert_eq!(queue.reserve(NOW), Reserve::Closed);
    for item in 1..=3 {
        assert_eq!(queue.pop(NOW), Pop::Item(item));
    }
    assert_eq!(queue.pop(NOW), Pop::Error(BROKEN));
}

#[test]
fn submitted_items_are_claimed_in_order_and_their_results_given_in_order() {
    let queue = Queue::new(1, true);
    (1..=3).for_each(|item| queue.submit(item));
    let (first, second) = (claimed(&queue, true), claimed(&queue, false));
    assert_eq!((first.1, second.1), (1, 2));
    assert_eq!(queue.put(second.0, Outcome::Error(BROKEN)), Some(2), "the copy is returned");
    let mut seen = Vec::new();
    queue.for_each(|_, view| {
        seen.push(match view {
            View::Running(&item) => ("running", item),
            View::Error(&item) => ("error", item),
            View::Waiting(&item) => ("waiting", item),
            View::Item(&item) => ("else", item),
        });
    });
    assert_eq!(seen, [("running", 1), ("error", BROKEN), ("waiting", 3)]);
    assert_eq!(queue.pop(NOW), Pop::TimedOut);
    queue.put(first.0, Outcome::Item(10));
    assert_eq!((queue.pop(NOW), queue.pop(NOW), queue.pop(NOW)), (Pop::Item(10), Pop::Error(BROKEN), Pop::TimedOut));
}

#[test]
fn a_hold_blocks_submitted_items_and_waits_for_items_that_workers_may_change() {
    let _watchdog = watchdog(60);
    let queue = Arc::new(Queue::new(1, true));
    (1..=3).for_each(|item| queue.submit(item));
    let ((changing, _), (plain, _)) = (claimed(&queue, true), claimed(&queue, false));
    let held = hold(&queue);
    assert!(!queue.wait_idle(NOW));
    assert!(!queue.wait_claimable(NOW));
    assert_eq!(queue.claim_some((1, 1), 1, |_| false, |&mut item| (item, true)), Some((vec![], vec![])));
    queue.put(changing, Outcome::Item(1));
    assert!(queue.wait_idle(NOW), "no thread can change the other item");
    let worker = thread::spawn({
        let queue = Arc::clone(&queue);
        move || queue.wait_claimable(LONG)
    });
    drop(held);
    assert!(worker.join().unwrap());
    assert_eq!(claimed(&queue, true).1, 3);
    queue.put(plain, Outcome::Item(2));
    queue.close();
    assert_eq!(queue.claim_some((1, 1), 1, |_| false, |&mut item| (item, true)), None);
}

#[test]
fn draining_removes_everything_except_running_items_and_remembers_the_end() {
    let queue = Queue::new(3, true);
    push(&queue, Outcome::Item(1));
    let slot = reserved(&queue);
    queue.leave_source(slot);
    push(&queue, Outcome::Item(2));
    (3..=4).for_each(|item| queue.submit(item));
    let (claimed, _) = claimed(&queue, true);
    assert_eq!(queue.drain(), [1, 2, 3, 4]);
    assert_eq!(queue.len(), 2);
    queue.skip(claimed);
    queue.put(slot, Outcome::Item(4));
    push(&queue, Outcome::End(None));
    assert_eq!(queue.drain(), [4]);
    assert_eq!(queue.pop(NOW), Pop::Ended);
}

#[test]
fn draining_a_closed_queue_is_not_an_end_for_a_consumer_that_has_not_received_it() {
    for items in [0, 1] {
        let queue = Queue::new(3, true);
        (0..items).for_each(|item| push(&queue, Outcome::Item(item)));
        push(&queue, Outcome::End(None));
        queue.close();
        queue.drain();
        assert_eq!(queue.pop(NOW), Pop::Closed);
    }
    let queue = Queue::new(3, true);
    push(&queue, Outcome::End(None));
    assert_eq!(queue.pop(NOW), Pop::Ended);
    queue.close();
    queue.drain();
    assert_eq!(queue.pop(NOW), Pop::Ended, "the end was reached before");
}

#[test]
fn contents_are_replaced_unless_a_worker_uses_them() {
    let queue = Queue::new(5, true);
    queue.append(Outcome::Item(0));
    (1..=3).for_each(|item| queue.submit(item));
    let (first, _) = claimed(&queue, true);
    let (second, _) = claimed(&queue, true);
    queue.put(second, Outcome::Error(2));
    let mut slots = Vec::new();
    queue.for_each(|slot, _| slots.push(slot));
    let former: Vec<_> = slots.iter().map(|&slot| queue.exchange(slot, 100)).collect();
    assert_eq!(former, [0, 100, 2, 3], "the second item is being computed, so the new content is returned");
    assert_eq!(buffered(&queue), [100, 1, 100, 100]);
    queue.put(first, Outcome::Item(1));
    assert_eq!(queue.exchange(99, 7), 7);
}

#[test]
fn memory_depends_on_the_buffered_items_and_not_on_the_capacity() {
    let queue = Queue::new(usize::MAX, true);
    push(&queue, Outcome::Item(1));
    push(&queue, Outcome::Item(2));
    assert_eq!((queue.capacity(), queue.len()), (usize::MAX, 2));
    assert_eq!((queue.pop(NOW), queue.pop(NOW), queue.pop(NOW)), (Pop::Item(1), Pop::Item(2), Pop::TimedOut));
}

#[test]
fn waiting_removes_nothing_and_returns_whether_something_is_available() {
    let queue = Queue::new(2, true);
    assert!(!queue.wait_filled(Duration::from_millis(5)));
    push(&queue, Outcome::Item(1));
    assert!(queue.wait_filled(NOW));
    assert_eq!(queue.len(), 1);
    assert_eq!(queue.try_pop(), Pop::Item(1));
    push(&queue, Outcome::End(None));
    assert!(queue.wait_filled(NOW));
    assert_eq!(queue.try_pop(), Pop::Ended);
    assert!(queue.wait_filled(NOW), "the queue remains ended");
}

#[test]
fn iterating_over_buffered_items_stops_at_an_error() {
    let queue = Queue::new(2, true);
    (1..=3).for_each(|item| queue.append(Outcome::Item(item)));
    let mut seen = Vec::new();
    let stopped = queue.try_for_each(|_, view| {
        seen.push(*view.content());
        if seen.len() == 2 { Err("enough") } else { Ok(()) }
    });
    assert_eq!((stopped, seen, queue.len()), (Err("enough"), vec![1, 2], 3));
}

fn shown(position: &QueuePosition<u64>) -> (u64, u64, Vec<u64>) {
    (position.mark, position.steps, position.ahead().collect())
}

fn received(position: &QueuePosition<u64>) -> Vec<u64> {
    let (mark, steps, ahead) = shown(position);
    (0..mark + steps).chain(ahead.iter().map(|index| mark + index)).collect()
}

#[test]
fn a_mark_of_an_item_delivered_earlier_advances_the_position() {
    let mut position = QueuePosition::new(0, 3, [4]);
    assert_eq!(received(&position), [0, 1, 2, 4]);
    position.note_late(1, 2);
    assert_eq!(shown(&position), (2, 1, vec![2]));
    position.note_late(0, 1);
    assert_eq!((shown(&position), &position.spent[..]), ((2, 1, vec![2]), &[0, 1][..]));
    position.note_late(4, 5);
    position.note(3, None);
    assert_eq!((shown(&position), position.received()), ((5, 0, vec![]), 5));
    assert_eq!(position.marks().count(), 1 + position.spent.len());
}

#[test]
fn a_late_mark_counts_although_the_gap_was_already_closed() {
    let mut position = QueuePosition::new(0, 0, [1]);
    position.note(0, None);
    position.note_late(1, 2);
    assert_eq!((shown(&position), received(&position)), ((2, 0, vec![]), vec![0, 1]));
}

#[derive(Debug, Clone)]
enum Step {
    Push,
    Pop,
    Hold,
    Release(usize),
    Look,
    Drain,
    Fail,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Push),
        8 => Just(Step::Pop),
        1 => Just(Step::Hold),
        2 => any::<usize>().prop_map(Step::Release),
        2 => Just(Step::Look),
        1 => Just(Step::Drain),
        1 => Just(Step::Fail),
        1 => Just(Step::Close),
    ]
}

proptest! {
    #[test]
    fn any_sequence_of_calls_agrees_with_a_simple_model(
        capacity in 1usize..5,
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let queue = Queue::new(capacity, true);
        let mut model: VecDeque<usize> = VecDeque::new();
        let (mut made, mut failed, mut closed, mut ended) = (0, false, false, false);
        let mut holds = Vec::new();
        for step in steps {
            match step {
                Step::Push | Step::Fail => {
                    let fails = matches!(step, Step::Fail);
                    let item = if fails { BROKEN } else { made };
                    let answer = queue.reserve(NOW);
                    if let Reserve::Granted(slot) = answer {
                        prop_assert!(!closed && !failed && holds.is_empty() && model.len() < capacity);
                        queue.put(slot, if fails { Outcome::End(Some(item)) } else { Outcome::Item(item) });
                        failed = fails;
                        model.push_back(item);
                        made += 1;
                    } else {
                        prop_assert_eq!(answer == Reserve::Closed, closed || failed);
                        prop_assert!(closed || failed || !holds.is_empty() || model.len() >= capacity);
                    }
                }
                Step::Pop => {
                    let expected = if ended {
                        Pop::Ended
                    } else if closed {
                        Pop::Closed
                    } else {
                        match model.pop_front() {
                            Some(BROKEN) => {
                                ended = true;
                                Pop::Error(BROKEN)
                            }
                            Some(item) => Pop::Item(item),
                            None => Pop::TimedOut,
                        }
                    };
                    prop_assert_eq!(queue.pop(NOW), expected);
                }
                Step::Hold => {
                    let held = hold(&queue);
                    prop_assert!(queue.wait_idle(NOW));
                    holds.push(held);
                }
                Step::Release(which) => drop((!holds.is_empty()).then(|| holds.swap_remove(which % holds.len()))),
                Step::Look => prop_assert_eq!(buffered(&queue), model.iter().copied().collect::<Vec<_>>()),
                Step::Drain => {
                    prop_assert_eq!(queue.drain(), model.drain(..).collect::<Vec<_>>());
                    ended |= failed && !closed;
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
