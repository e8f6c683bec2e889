//! Tests that a process detects damage to any part of shared memory. The program
//! `tests/python/support/random_scribbles.py` tests random damage.
#![cfg(not(loom))]

mod common;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::child::run_again_portably;
use common::raw::Raw;
use common::stream::{ITEM, Receiver, SMALL, Sender, open};
use common::watchdog;
use crossbeam_utils::CachePadded;
use torchdata_core::error::OpenError;
use torchdata_core::integrity::{SEALED_BITS, open as unsealed, open_after, seal};
use torchdata_core::link::Link;
use torchdata_core::link::producer::Part;
use torchdata_core::process::board::BellBoard;

const VERSION: usize = 8;
const RING_CAPACITY: usize = 24;
const LINE: usize = align_of::<CachePadded<AtomicU64>>();
const TAIL: usize = LINE;
const HEAD: usize = 2 * LINE;
const RETURN_TAIL: usize = 3 * LINE;
const RING: usize = 4096;

const SEALED: u64 = (1 << SEALED_BITS) - 1;

#[test]
fn everything_holds_on_the_portable_backing_too() {
    let _watchdog = watchdog(120);
    run_again_portably("everything_holds_on_the_portable_backing_too");
}

fn file(content: &[u8]) -> OwnedFd {
    let mut file = tempfile();
    file.write_all(content).unwrap();
    file.into()
}

fn tempfile() -> std::fs::File {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("torchdata-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(name);
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[test]
fn memory_that_is_not_a_link_is_rejected() {
    let _watchdog = watchdog(30);
    let attach = |fd| Link::attach(fd).expect_err("no link");
    assert!(matches!(attach(file(&[])), OpenError::Invalid(_)));
    assert!(matches!(attach(file(&[1; 4095])), OpenError::Invalid(_)));
    assert!(matches!(attach(file(&[0; 8192])), OpenError::Invalid(_)));
    assert!(matches!(attach(file(&[0xab; 8192])), OpenError::Invalid(_)));
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(matches!(attach(reader.into()), OpenError::System { .. } | OpenError::Invalid(_)));
    let empty = BellBoard::attach(file(&[])).map(|board| board.bell(0).is_none());
    assert!(empty.unwrap_or(true));
}

#[test]
fn a_link_of_another_release_or_with_impossible_sizes_is_rejected() {
    let _watchdog = watchdog(30);
    let attach = |link: &Link| Link::attach(link.region().fd().try_clone_to_owned().unwrap());
    let (link, _bells) = open(SMALL);
    let raw = Raw::new(&link);
    let ours = raw.u32(VERSION).load(Relaxed);
    raw.u32(VERSION).store(ours - 1, Relaxed);
    assert!(
        matches!(attach(&link), Err(OpenError::Version { found, expected }) if (found, expected) == (ours - 1, ours))
    );
    raw.u32(VERSION).store(0, Relaxed);
    assert!(matches!(attach(&link), Err(OpenError::Invalid(_))));
    raw.u32(VERSION).store(ours, Relaxed);
    for (field, right) in [(0, SMALL.ring_capacity), (8, SMALL.return_capacity), (16, SMALL.arena_capacity)] {
        for wrong in [0, 1, 4095, right + 4096, right * 2, u64::MAX, 1 << 63, u64::MAX - 4095] {
            raw.u64(RING_CAPACITY + field).store(wrong, Relaxed);
            assert!(matches!(attach(&link), Err(OpenError::Invalid(_))), "field {field} = {wrong}");
        }
        raw.u64(RING_CAPACITY + field).store(right, Relaxed);
    }
    assert!(attach(&link).is_ok());
}

#[test]
fn every_violation_of_the_layout_is_detected() {
    let _watchdog = watchdog(30);
    let unit = [
        ("shorter than any unit", 0, 0),
        ("no multiple of 8", 0, 25),
        ("longer than what was published", 0, 4096),
        ("beyond the ring", 0, u32::MAX - 7),
        ("another checksum", 4, 1),
        ("a padding longer than the unit", 8, 4000),
        ("a payload shorter than it is", 8, 4),
        ("another shard", 8, 1 << 16),
        ("another kind", 12, 0x0001_0002),
        ("more blocks than the unit holds", 12, 0x00ff_0001),
        ("another epoch", 16, 1),
        ("a block outside the arena", 24 + 4, 1),
        ("a block across the arena's end", 24 + 8, 65 << 10),
        ("a block off the grid", 24, 8),
        ("another block", 24, 8192),
        ("another length of a block", 24 + 8, 4999),
        ("another payload", 24 + 16, 0x3131_3131),
    ];
    for (what, offset, value) in unit {
        let (link, bells) = open(SMALL);
        let (mut sender, mut receiver) = (Sender::new(&link, &bells), Receiver::new(&link, &bells));
        let block = sender.end.allocate(5000).unwrap().unwrap();
        sender.end.push_item(ITEM, &[Part::Block(block.into())], b"12345678").unwrap();
        Raw::new(&link).u32(RING + offset).store(value, Relaxed);
        assert!(receiver.poll().is_err(), "{what}");
        assert!(receiver.poll().is_err(), "{what}, second poll");
    }
    for (what, offset, value) in [
        ("a tail that ran away", TAIL, seal(1 << 40)),
        ("a tail off the grid", TAIL, seal(20)),
        ("a tail inside a unit", TAIL, seal(32)),
        ("a tail without a seal", TAIL, 64),
        ("a wiped tail", TAIL, 0),
        ("a wiped head, before sleeping", HEAD, 0),
    ] {
        let (link, bells) = open(SMALL);
        let mut receiver = Receiver::new(&link, &bells);
        Raw::new(&link).u64(offset).store(value, Relaxed);
        assert!(receiver.poll().is_err(), "{what}");
    }
    let (link, bells) = open(SMALL);
    let mut sender = Sender::new(&link, &bells);
    Raw::new(&link).u64(HEAD).store(seal(8), Relaxed);
    assert!(sender.end.blocks_in_flight().is_err(), "a head ahead of the tail");
    Raw::new(&link).u64(RETURN_TAIL).store(seal(1), Relaxed);
    assert!(sender.end.arena().reclaim().is_err(), "a block was returned that was not sent");
    assert!(sender.end.allocate(1).is_err());
}

#[test]
fn a_sealed_word_can_be_opened_and_every_change_within_a_byte_is_detected() {
    for value in [0, 1, 40, 0x1234_5678, SEALED, SEALED - 7, 1 << 47] {
        let word = seal(value);
        assert_eq!(unsealed(word), Some(value));
        for byte in 0..8 {
            for mask in 1..=255_u64 {
                assert_eq!(unsealed(word ^ (mask << (8 * byte))), None, "{value:#x}, byte {byte} ^ {mask:#x}");
            }
        }
    }
    assert_eq!(unsealed(0), None, "wiped memory");
    assert_eq!(unsealed(u64::MAX), None);
}

#[test]
fn a_value_wider_than_a_word_is_restored_from_a_known_earlier_value() {
    let known = (7 << SEALED_BITS) - 3;
    assert_eq!(open_after(known, seal(known)), Some(known));
    assert_eq!(open_after(known, seal(known + 100)), Some(known + 100));
    assert_eq!(open_after(known, seal(known - 1)), Some(known + SEALED), "far ahead rather than behind");
    assert_eq!(open_after(u64::MAX, seal(u64::MAX - 1)), None);
}
