//! Explores with loom all interleavings of a small ring's two ends. Each slot must be read once, after the write.
#![cfg(loom)]

mod common;

use common::watchdog;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use torchdata_core::error::Corrupted;
use torchdata_core::integrity::seal;
use torchdata_core::sync::cursor::{BIRTH, ConsumerCursor, ProducerCursor};
use torchdata_core::sync::primitive::AtomicU64;

/// A ring of slots. Loom reports an error if two threads access the same slot concurrently.
struct Ring {
    slots: Vec<UnsafeCell<u64>>,
    tail: AtomicU64,
    head: AtomicU64,
}

impl Ring {
    fn new(capacity: u64) -> Arc<Self> {
        let slots = (0..capacity).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self { slots, tail: AtomicU64::new(BIRTH), head: AtomicU64::new(BIRTH) })
    }

    fn slot(&self, position: u64) -> &UnsafeCell<u64> {
        &self.slots[position as usize % self.slots.len()]
    }

    fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }
}

// SAFETY: the cursors keep the producer and the consumer from using the same slot. This model verifies the guarantee.
unsafe impl Sync for Ring {}
// SAFETY: the cursors keep the producer and the consumer from using the same slot. This model verifies the guarantee.
unsafe impl Send for Ring {}

fn produce(ring: &Ring, lens: &[u64]) {
    let mut cursor = ProducerCursor::new(ring.capacity());
    let mut next = 1;
    for &len in lens {
        while !cursor.has_room(&ring.head, len).unwrap() {
            thread::yield_now();
        }
        for position in cursor.tail()..cursor.tail() + len {
            // SAFETY: the producer's cursor has reported the slot as free. This model verifies the cursor.
            ring.slot(position).with_mut(|slot| unsafe { *slot = next });
            next += 1;
        }
        cursor.publish(&ring.tail, len);
    }
}

fn consume(ring: &Ring, count: u64, at_once: u64) {
    let mut cursor = ConsumerCursor::new(ring.capacity());
    let mut seen = 0;
    while seen < count {
        let available = cursor.available(&ring.tail).unwrap().min(at_once);
        if available == 0 {
            thread::yield_now();
            continue;
        }
        for position in cursor.head()..cursor.head() + available {
            seen += 1;
            // SAFETY: the consumer's cursor has reported the slot as published. This model verifies the cursor.
            ring.slot(position).with(|slot| assert_eq!(unsafe { *slot }, seen));
        }
        cursor.release(&ring.head, available);
    }
    assert_eq!(cursor.available(&ring.tail), Ok(0), "more items arrived than were sent");
}

fn check(capacity: u64, lens: &'static [u64], at_once: u64) {
    let _watchdog = watchdog(60);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let ring = Ring::new(capacity);
        let theirs = Arc::clone(&ring);
        let producer = thread::spawn(move || produce(&theirs, lens));
        consume(&ring, lens.iter().sum(), at_once);
        producer.join().unwrap();
    });
}

#[test]
fn single_slots_arrive_once_and_in_order() {
    check(2, &[1, 1, 1, 1], u64::MAX);
}

#[test]
fn longer_units_arrive_whole_and_wrap() {
    check(3, &[2, 1, 2], u64::MAX);
}

#[test]
fn space_that_is_freed_in_pieces_is_not_overwritten_early() {
    check(2, &[2, 1, 2], 1);
}

#[test]
fn a_cursor_outside_the_ring_is_detected_on_either_side() {
    let _watchdog = watchdog(60);
    loom::model(|| {
        let shared = |value| AtomicU64::new(value);
        let mut producer = ProducerCursor::new(4);
        producer.publish(&shared(BIRTH), 2);
        assert!(producer.refresh(&shared(seal(3))).is_err(), "a head ahead of the tail");
        assert!(producer.refresh(&shared(1)).is_err(), "a head without its seal");
        assert_eq!(producer.refresh(&shared(seal(1))), Ok(1));
        assert!(producer.refresh(&shared(seal(0))).is_err(), "a head that goes back");
        let mut consumer = ConsumerCursor::new(4);
        let far = consumer.available(&shared(seal(5)));
        assert_eq!(far, Err(Corrupted("a producer's cursor is outside the ring")), "a tail further than the capacity");
        assert_eq!(consumer.available(&shared(seal(4))), Ok(4));
        assert!(consumer.check(&shared(BIRTH)).is_ok());
        assert!(consumer.check(&shared(seal(4))).is_err(), "a head that another writer has overwritten");
    });
}
