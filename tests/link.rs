//! Tests the guarantees of a link between threads and between processes.
//!
//! A process uses only one kind of shared memory, so the test `everything_holds_on_the_portable_backing` runs
//! this binary again with the portable fallback.
#![cfg(not(loom))]

mod common;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use common::child::{inherited, role, run_again_portably, start};
use common::stream::{CONSUMER, ITEM, Item, PRODUCER, Random, Receiver, SMALL, Sender, bytes, item, open};
use common::watchdog;
use proptest::prelude::*;
use torchdata_core::error::OpenError;
use torchdata_core::link::consumer::{Buffer, Message};
use torchdata_core::link::producer::{Part, Push};
use torchdata_core::link::{Link, LinkConfig};
use torchdata_core::protocol::{Permit, Stream};

fn item_of(inline: usize, buffers: &[usize]) -> Item {
    let mut random = Random(inline as u64);
    Item { inline: random.bytes(inline), buffers: buffers.iter().map(|&len| random.bytes(len)).collect() }
}

/// Creates both ends of a link, for a test with a single thread that uses both ends.
fn pair(config: LinkConfig, window: u64) -> (Sender, Receiver) {
    let (link, bells) = open(config);
    let (sender, mut receiver) = (Sender::new(&link, &bells), Receiver::new(&link, &bells));
    receiver.end.begin(Stream::default(), window);
    (sender, receiver)
}

#[test]
fn everything_holds_on_the_portable_backing() {
    let _watchdog = watchdog(120);
    run_again_portably("everything_holds_on_the_portable_backing");
}

fn stream_between_threads(config: LinkConfig, items: &[Item], window: u64, keep: impl Fn(usize) -> bool) {
    let (link, bells) = open(config);
    let mut receiver = Receiver::new(&link, &bells);
    receiver.end.begin(Stream::default(), window);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = Sender::new(&link, &bells);
            items.iter().for_each(|item| sender.send(item).unwrap());
            sender.send_end().unwrap();
        });
        let (mut kept, mut late) = (Vec::new(), Vec::new());
        let mut random = Random(items.len() as u64);
        for (index, expected) in items.iter().enumerate() {
            let arrived = receiver.receive().unwrap().expect("an item, not the end");
            assert!(arrived.item() == *expected, "item {index} differs");
            if keep(index) { &mut kept } else { &mut late }.push((arrived, expected));
            if late.len() > 3 {
                late.swap_remove(random.below(late.len() as u64) as usize);
            }
        }
        assert!(receiver.receive().unwrap().is_none(), "more items arrived than were sent");
        for (arrived, expected) in kept.iter().chain(&late) {
            assert!(arrived.item() == **expected, "a leased buffer changed while it was held");
        }
    });
}

fn any_item() -> impl Strategy<Value = Item> {
    let inline = prop_oneof![4 => 0..40_usize, 2 => 0..=1024_usize, 1 => Just(1024_usize)];
    let buffer = prop_oneof![4 => 0..9000_usize, 2 => Just(4096_usize), 1 => 0..150_000_usize];
    let buffers = prop_oneof![3 => Just(Vec::new()), 2 => prop::collection::vec(buffer, 1..5)];
    (inline, buffers).prop_map(|(inline, buffers)| item_of(inline, &buffers))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_items_arrives_for_any_kept_leases(
        items in prop::collection::vec(any_item(), 0..60),
        keep in prop::collection::vec(any::<bool>(), 60),
        window in 1..20_u64,
    ) {
        let _watchdog = watchdog(30);
        stream_between_threads(SMALL, &items, window, |index| keep[index]);
    }
}

#[test]
fn units_of_every_length_wrap_at_every_position_of_the_ring() {
    let _watchdog = watchdog(60);
    let mut unit = Message::default();
    for start in (24..4096 + 24).step_by(8) {
        for len in [0, 1, 8, 100, 999, 1024] {
            let (link, bells) = open(SMALL);
            let mut producer = link.producer(bells.bell(CONSUMER).unwrap()).unwrap();
            let mut consumer = link.consumer(bells.bell(PRODUCER).unwrap()).unwrap();
            // A message can fill at most a quarter of the ring.
            let mut rest = start;
            while rest > 0 {
                let step = if rest > 1000 { 800 } else { rest };
                assert_eq!(producer.push(ITEM, &[], &vec![0; step - 24]), Ok(Push::Done));
                assert!(consumer.take(&mut unit).unwrap());
                rest -= step;
            }
            let expected = item_of(len, &[]).inline;
            assert_eq!(producer.push(7, &[], &expected), Ok(Push::Done), "offset {start}, length {len}");
            assert!(consumer.take(&mut unit).unwrap(), "the message after the padding");
            assert_eq!((unit.kind, &unit.payload), (7, &expected), "offset {start}, length {len}");
            assert!(!consumer.readable().unwrap());
        }
    }
}

#[test]
fn a_completely_full_ring_reports_full_and_loses_nothing() {
    let _watchdog = watchdog(30);
    for len in [0, 8, 333, 1000, 1024] {
        let (mut sender, mut receiver) = pair(SMALL, u64::MAX);
        let (mut sent, mut taken) = (0_u64, 0_u64);
        for _ in 0..50 {
            while sender.end.push_item(ITEM, &[], &[&sent.to_le_bytes()[..], &vec![1; len]].concat()[..len.max(8)])
                == Ok(Push::Done)
            {
                sent += 1;
            }
            assert_eq!(sender.end.writable(0, len.max(8)), Ok(false));
            for _ in 0..3 {
                if let Some((_, arrived)) = receiver.poll().unwrap() {
                    assert_eq!(arrived.inline[..8], taken.to_le_bytes());
                    taken += 1;
                }
            }
        }
        while let Some((_, arrived)) = receiver.poll().unwrap() {
            assert_eq!(arrived.inline[..8], taken.to_le_bytes());
            taken += 1;
        }
        assert!(taken == sent && taken >= 150);
    }
}

#[test]
fn a_link_without_an_arena_streams_everything() {
    let _watchdog = watchdog(30);
    let config = LinkConfig { arena_capacity: 0, ..SMALL };
    stream_between_threads(config, &[item_of(5, &[1, 10_000]), item_of(7, &[1 << 20, 0, 5000])], 1, |_| true);
}

#[test]
fn processes_exchange_the_same_streams_in_either_direction() {
    let _watchdog = watchdog(60);
    for window in [1, 7, 1000] {
        let (link, bells) = open(SMALL);
        let mut receiver = Receiver::new(&link, &bells);
        receiver.end.begin(Stream::default(), window);
        let _child = start("producer", &link, &bells);
        let mut kept = Vec::new();
        for index in 0..300 {
            let arrived = receiver.receive().unwrap().expect("an item");
            assert!(arrived.item() == item(1, index, SMALL), "item {index} differs");
            if index % 40 == 0 {
                kept.push((index, arrived));
            }
        }
        assert!(receiver.receive().unwrap().is_none());
        kept.iter().for_each(|(index, arrived)| assert!(arrived.item() == item(1, *index, SMALL)));
    }
    let (link, bells) = open(SMALL);
    let mut sender = Sender::new(&link, &bells);
    let mut child = start("consumer", &link, &bells);
    (0..300).for_each(|index| sender.send(&item(2, index, SMALL)).unwrap());
    sender.send_end().unwrap();
    assert!(child.0.wait().unwrap().success());
}

#[test]
#[ignore = "child processes of other tests run this"]
fn child_process() {
    let _watchdog = watchdog(60);
    let (link, bells) = inherited();
    match role().as_str() {
        "producer" => {
            let mut sender = Sender::new(&link, &bells);
            (0..300).for_each(|index| sender.send(&item(1, index, SMALL)).unwrap());
            sender.send_end().unwrap();
        }
        "consumer" => {
            let mut receiver = Receiver::new(&link, &bells);
            receiver.end.begin(Stream::default(), 5);
            for index in 0..300 {
                let arrived = receiver.receive().unwrap().expect("an item");
                assert!(arrived.item() == item(2, index, SMALL), "item {index} differs");
            }
            assert!(receiver.receive().unwrap().is_none());
        }
        other => panic!("unknown role {other}"),
    }
}

#[test]
fn memory_use_follows_the_data_in_flight_and_pages_are_reused() {
    let _watchdog = watchdog(30);
    let config = LinkConfig { arena_capacity: 64 << 20, ..SMALL };
    let (mut sender, mut receiver) = pair(config, 4);
    let sent = item_of(16, &[100_000]);
    let mut addresses = BTreeSet::new();
    let mut held = VecDeque::new();
    for _ in 0..2000 {
        while sender.end.permit() == Ok(Permit::Now) {
            sender.send(&sent).unwrap();
        }
        let (_, arrived) = receiver.poll().unwrap().expect("an item");
        let Buffer::Leased(lease) = &arrived.buffers[0] else { panic!("there was room for a block") };
        addresses.insert(lease.as_mut_ptr() as usize);
        held.push_back(arrived);
        if held.len() > 3 {
            held.pop_front();
        }
    }
    let block = 100_000_u64.next_multiple_of(4096);
    let usage = sender.end.arena().usage();
    assert!(usage.peak <= 9 * block, "{usage:?}");
    assert!(addresses.len() <= 9, "{} addresses for at most 8 blocks at a time", addresses.len());
    assert_eq!(receiver.end.leased(), 3 * 100_000);
    held.clear();
    while receiver.poll().unwrap().is_some() {}
    sender.end.arena().reclaim().unwrap();
    let usage = sender.end.arena().usage();
    assert_eq!((usage.in_use, usage.blocks, receiver.end.leased()), (0, 0, 0));
}

#[test]
fn freed_neighbours_merge_in_any_order() {
    let _watchdog = watchdog(30);
    let block = 4096;
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (mut sender, _receiver) = pair(LinkConfig { arena_capacity: 3 * block as u64, ..SMALL }, 1);
        let mut allocate = |len| sender.end.allocate(len).unwrap();
        let mut blocks: Vec<_> = (0..3).map(|_| allocate(block)).collect();
        assert!(blocks.iter().all(Option::is_some) && allocate(1).is_none());
        order.iter().for_each(|&index| blocks[index] = None);
        assert!(allocate(usize::MAX).is_none());
        assert_eq!(allocate(3 * block).map(|whole| whole.offset()), Some(0));
    }
}

#[test]
fn no_more_blocks_are_allocated_than_the_return_ring_holds() {
    let _watchdog = watchdog(30);
    let (mut sender, _receiver) = pair(LinkConfig { return_capacity: 512, arena_capacity: 1 << 30, ..SMALL }, 1);
    let blocks: Vec<_> = std::iter::from_fn(|| sender.end.allocate(1).unwrap()).collect();
    assert_eq!(blocks.len(), 512);
}

#[test]
fn leases_may_be_dropped_by_other_threads_and_after_their_consumer() {
    let _watchdog = watchdog(30);
    let (mut sender, mut receiver) = pair(LinkConfig { arena_capacity: 8 << 20, ..SMALL }, 1000);
    for _ in 0..100 {
        sender.send(&item_of(0, &[5000, 6000])).unwrap();
        let (_, arrived) = receiver.poll().unwrap().unwrap();
        thread::spawn(move || drop(arrived));
    }
    sender.send(&item_of(0, &[7000])).unwrap();
    let (_, last) = receiver.poll().unwrap().unwrap();
    let kept = last.item();
    drop(receiver);
    assert!(last.item() == kept);
    drop(last);
    while sender.end.arena().usage().blocks > 0 {
        sender.end.arena().reclaim().unwrap();
        thread::yield_now();
    }
}

#[test]
fn a_consumer_must_copy_before_its_leases_starve_the_producer() {
    let _watchdog = watchdog(30);
    let (mut sender, mut receiver) = pair(SMALL, 10_000);
    assert!(!receiver.end.should_copy(32 << 10) && receiver.end.should_copy((32 << 10) + 1));
    sender.send(&item_of(0, &[20 << 10])).unwrap();
    let held = receiver.poll().unwrap();
    assert!(!receiver.end.should_copy(12 << 10) && receiver.end.should_copy((12 << 10) + 1));
    drop(held);
    // The ring that returns blocks to the producer limits the number of blocks that the consumer may hold.
    let (mut sender, mut receiver) = pair(LinkConfig { arena_capacity: 16 << 20, ..SMALL }, 10_000);
    let mut held = Vec::new();
    while !receiver.end.should_copy(1) {
        sender.send(&item_of(0, &[1])).unwrap();
        held.push(receiver.poll().unwrap());
    }
    assert_eq!(held.len(), 256);
}

#[test]
fn a_block_sent_twice_is_free_only_when_both_leases_are_dropped() {
    let _watchdog = watchdog(30);
    let (mut sender, mut receiver) = pair(SMALL, 10);
    let block = Arc::new(sender.end.allocate(5000).unwrap().unwrap());
    let parts = [Part::Block(Arc::clone(&block)), Part::Block(block)];
    assert_eq!(sender.end.push_item(ITEM, &parts, &[]), Ok(Push::Done));
    drop(parts);
    let (_, arrived) = receiver.poll().unwrap().unwrap();
    let mut buffers = arrived.buffers.into_iter();
    drop(buffers.next());
    sender.end.arena().reclaim().unwrap();
    assert_eq!(sender.end.arena().usage().blocks, 1, "the second lease still exists");
    drop(buffers.next());
    sender.end.arena().reclaim().unwrap();
    assert_eq!(sender.end.arena().usage().blocks, 0);
}

#[test]
fn more_returned_blocks_than_the_return_ring_holds_are_all_reclaimed() {
    let _watchdog = watchdog(30);
    let (mut sender, mut receiver) = pair(SMALL, 10_000);
    let block = Arc::new(sender.end.allocate(10).unwrap().unwrap());
    let mut held = Vec::new();
    for _ in 0..1000 {
        assert_eq!(sender.end.push_item(ITEM, &[Part::Block(Arc::clone(&block))], &[]), Ok(Push::Done));
        held.push(receiver.poll().unwrap().unwrap());
    }
    let last = held.pop();
    held.clear();
    sender.end.arena().reclaim().unwrap();
    drop(last);
    sender.end.arena().reclaim().unwrap();
    drop(block);
    assert_eq!(sender.end.arena().usage().blocks, 0);
}

#[test]
fn a_block_of_another_link_is_rejected() {
    let _watchdog = watchdog(30);
    let (mut sender, _receiver) = pair(SMALL, 10);
    let (mut other, _other_receiver) = pair(SMALL, 10);
    let block = Arc::new(other.end.allocate(10).unwrap().unwrap());
    let push = std::panic::AssertUnwindSafe(|| sender.end.push_item(ITEM, &[Part::Block(block)], &[]));
    assert!(std::panic::catch_unwind(push).is_err());
}

#[test]
fn fragments_of_an_abandoned_unit_do_not_leak_into_later_items() {
    let _watchdog = watchdog(30);
    let (mut sender, mut receiver) = pair(SMALL, 10);
    // The stream ends before the item that its fragments belong to, so the consumer must drop the fragments.
    sender.stream(&[1; 500]).unwrap();
    sender.send_end().unwrap();
    assert!(receiver.receive().unwrap().is_none());
    let part = sender.stream(&[2; 600]).unwrap();
    assert_eq!(sender.end.push_item(ITEM, &[part], &[]), Ok(Push::Done));
    assert_eq!(bytes(&receiver.receive().unwrap().unwrap().buffers[0]), [2; 600]);
    // A new epoch begins before all fragments of an item have arrived, so the consumer must drop the earlier fragments.
    sender.stream(&[3; 500]).unwrap();
    assert!(receiver.poll().unwrap().is_none());
    sender.stream(&[4; 500]).unwrap();
    receiver.end.begin(Stream::first(1), 10);
    sender.end.begin(Stream::first(1));
    let part = sender.stream(&[5; 700]).unwrap();
    assert_eq!(sender.end.push_item(ITEM, &[part], &[]), Ok(Push::Done));
    assert_eq!(bytes(&receiver.receive().unwrap().unwrap().buffers[0]), [5; 700]);
    // The consumer must report an error if an item refers to only one of two received fragments.
    sender.stream(&[6; 500]).unwrap();
    let part = sender.stream(&[7; 500]).unwrap();
    assert_eq!(sender.end.push_item(ITEM, &[part], &[]), Ok(Push::Done));
    assert!(receiver.poll().is_err());
}

#[test]
fn units_of_older_epochs_are_dropped_and_their_blocks_return() {
    let _watchdog = watchdog(30);
    let (mut sender, mut receiver) = pair(SMALL, 5);
    for _ in 0..5 {
        sender.send(&item_of(30, &[4096, 5000])).unwrap();
    }
    sender.send_end().unwrap();
    receiver.end.begin(Stream::first(1), 5);
    sender.end.begin(Stream::first(1));
    sender.send(&item_of(3, &[])).unwrap();
    assert!(receiver.receive().unwrap().unwrap().item() == item_of(3, &[]));
    assert_eq!(receiver.end.leased(), 0);
    sender.end.arena().reclaim().unwrap();
    assert_eq!(sender.end.arena().usage().blocks, 0);
    assert_eq!(receiver.end.taken(), 1);
}

#[test]
fn a_consumer_continues_over_the_link_of_a_new_producer_and_keeps_its_leases() {
    let _watchdog = watchdog(30);
    let (mut exited, mut receiver) = pair(SMALL, 5);
    for number in 0..2 {
        exited.send(&item_of(number, &[4096])).unwrap();
    }
    let kept: Vec<_> = (0..2).map(|_| receiver.receive().unwrap().unwrap()).collect();
    drop(exited);
    let (link, bells) = open(SMALL);
    receiver.end = link.consumer_after(&receiver.end).unwrap();
    let mut successor = Sender::new(&link, &bells);
    for number in 2..7 {
        successor.send(&item_of(number, &[4096])).unwrap();
    }
    assert_eq!(successor.end.permit(), Ok(Permit::Wait));
    for number in 2..7 {
        assert!(receiver.receive().unwrap().unwrap().item() == item_of(number, &[4096]));
    }
    assert_eq!(successor.end.permit(), Ok(Permit::Now));
    for (number, arrived) in kept.iter().enumerate() {
        assert!(arrived.item() == item_of(number, &[4096]), "the memory was freed with its producer");
    }
    assert!(matches!(link.consumer_after(&receiver.end), Err(OpenError::Taken(_))), "this end is taken already");
}

#[test]
fn a_producer_is_never_further_ahead_than_its_window() {
    let _watchdog = watchdog(30);
    for window in [1, 2, 7] {
        let (link, bells) = open(SMALL);
        let mut receiver = Receiver::new(&link, &bells);
        thread::scope(|scope| {
            let mut sender = Sender::new(&link, &bells);
            assert!(sender.end.permit() != Ok(Permit::Now), "nothing was granted yet");
            receiver.end.begin(Stream::default(), window);
            scope.spawn(move || (0..3000).for_each(|_| sender.send(&item_of(4, &[])).unwrap()));
            for taken in 0..3000 {
                assert!(link.sent().0 <= taken + window);
                receiver.receive().unwrap().unwrap();
            }
        });
        assert_eq!(link.sent().0, 3000);
    }
}

#[test]
fn items_wake_a_sleeper_that_wants_them_and_all_other_units_do_anyway() {
    let _watchdog = watchdog(60);
    for wanted in [false, true] {
        let (mut sender, mut receiver) = pair(SMALL, 8);
        receiver.end.want_items(wanted);
        let bell = receiver.bell.clone();
        thread::scope(|scope| {
            scope.spawn(|| while !bell.wait(Duration::from_secs(30), || receiver.end.readable().unwrap()) {});
            while !bell.has_sleeper() {
                thread::yield_now();
            }
            sender.send(&item_of(1, &[])).unwrap();
            sender.end.flush();
            if !wanted {
                assert_eq!(sender.end.flow().wakes.load(Ordering::Relaxed), 0, "no process waits for this link");
                sender.send_end().unwrap();
            }
        });
        assert_eq!(sender.end.flow().wakes.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn an_unlimited_window_is_unlimited_and_a_new_epoch_counts_from_zero() {
    let _watchdog = watchdog(30);
    let (mut sender, mut receiver) = pair(SMALL, u64::MAX);
    for _ in 0..100 {
        sender.send(&item_of(0, &[])).unwrap();
        receiver.receive().unwrap().unwrap();
    }
    receiver.end.begin(Stream::first(1), 2);
    sender.end.begin(Stream::first(1));
    let mut sent = 0;
    while sender.end.permit() == Ok(Permit::Now) {
        sender.send(&item_of(0, &[])).unwrap();
        sent += 1;
    }
    assert_eq!(sent, 2);
    receiver.end.set_window(3);
    assert_eq!(sender.end.permit(), Ok(Permit::Now));
}

#[test]
fn each_end_is_taken_once_also_through_another_mapping() {
    let _watchdog = watchdog(30);
    let (link, bells) = open(SMALL);
    let again = Link::attach(link.region().fd().try_clone_to_owned().unwrap()).unwrap();
    let bell = || bells.bell(0).unwrap();
    let _producer = link.producer(bell()).unwrap();
    let _consumer = again.consumer(bell()).unwrap();
    assert!(matches!(again.producer(bell()), Err(OpenError::Taken("producer"))));
    assert!(matches!(link.consumer(bell()), Err(OpenError::Taken("consumer"))));
    assert!(bells.bell(1).is_some() && bells.bell(2).is_none());
}

#[test]
fn a_forked_child_returns_no_blocks_and_leases() {
    let _watchdog = watchdog(30);
    let (mut sender, mut receiver) = pair(SMALL, 10);
    sender.send(&item_of(0, &[5000])).unwrap();
    let block = sender.end.allocate(100).unwrap();
    let arrived = receiver.poll().unwrap();
    // SAFETY: the child only drops inherited objects and exits.
    match unsafe { libc::fork() } {
        0 => {
            drop((arrived, block));
            // SAFETY: `_exit` only ends the child process.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 1;
            // SAFETY: `status` is valid for writing during the call.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0);
        }
    }
    sender.end.arena().reclaim().unwrap();
    assert_eq!(sender.end.arena().usage().blocks, 2, "the parent still has both leases");
    assert!(arrived.unwrap().1.item() == item_of(0, &[5000]));
    drop(block);
    sender.end.arena().reclaim().unwrap();
    assert_eq!(sender.end.arena().usage().blocks, 0);
}
