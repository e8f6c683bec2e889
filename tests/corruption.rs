//! Shared memory that another process damages causes at most an error, and never a panic, a hang or an access out of
//! bounds.
#![cfg(not(loom))]
#![allow(missing_docs)]

mod common;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use common::child::run_again_portably;
use common::raw::Raw;
use common::stream::{ITEM, Random, Receiver, SMALL, Sender, bytes, open};
use common::watchdog;
use crossbeam_utils::CachePadded;
use proptest::prelude::*;
use torchdata_core::error::OpenError;
use torchdata_core::integrity::seal;
use torchdata_core::link::producer::{Part, Push};
use torchdata_core::link::{Link, LinkConfig};
use torchdata_core::process::board::BellBoard;
use torchdata_core::protocol::Stream;

const SHORT: Duration = Duration::from_millis(20);
/// Offsets in the header, as documented in the layout.
const VERSION: usize = 8;
const RING_CAPACITY: usize = 24;
const LINE: usize = align_of::<CachePadded<AtomicU64>>();
const TAIL: usize = LINE;
const HEAD: usize = 2 * LINE;
const RETURN_TAIL: usize = 3 * LINE;
const RING: usize = 4096;
/// Header, data ring and return ring: everything that the ends interpret.
const CONTROL: usize = RING + SMALL.ring_capacity as usize + 8 * SMALL.return_capacity as usize;

#[test]
fn everything_holds_on_the_portable_backing_too() {
    let _watchdog = watchdog(120);
    run_again_portably("everything_holds_on_the_portable_backing_too");
}

// ---- attaching ---------------------------------------------------------------------------------------------------

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
fn memory_that_is_not_a_link_is_rejected_in_bounded_time() {
    let _watchdog = watchdog(30);
    let attach = |fd| Link::attach_within(fd, SHORT).expect_err("no link");
    assert!(matches!(attach(file(&[])), OpenError::Invalid(_)));
    assert!(matches!(attach(file(&[1; 4095])), OpenError::Invalid(_)));
    assert!(matches!(attach(file(&[0; 8192])), OpenError::NotReady(SHORT)));
    assert!(matches!(attach(file(&[0xab; 8192])), OpenError::Invalid(_)));
    let (reader, _writer) = std::io::pipe().unwrap();
    assert!(matches!(attach(reader.into()), OpenError::System { .. } | OpenError::Invalid(_)));
    let empty = BellBoard::attach(file(&[])).map(|board| board.bell(0).is_none());
    assert!(empty.unwrap_or(true));
}

#[test]
fn a_link_of_another_release_or_with_impossible_sizes_is_rejected() {
    let _watchdog = watchdog(30);
    let attach = |link: &Link| Link::attach_within(link.fd().try_clone_to_owned().unwrap(), SHORT);
    let (link, _bells) = open(SMALL);
    let raw = Raw::new(&link);
    let ours = raw.u32(VERSION).load(Relaxed);
    raw.u32(VERSION).store(ours - 1, Relaxed);
    assert!(
        matches!(attach(&link), Err(OpenError::Version { found, expected }) if (found, expected) == (ours - 1, ours))
    );
    raw.u32(VERSION).store(0, Relaxed);
    assert!(matches!(attach(&link), Err(OpenError::NotReady(_))));
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
fn attaching_waits_for_a_creator_that_has_not_finished() {
    let _watchdog = watchdog(30);
    let (link, _bells) = open(SMALL);
    let raw = Raw::new(&link);
    let ours = raw.u32(VERSION).swap(0, Relaxed);
    thread::scope(|scope| {
        let attached = scope.spawn(|| Link::attach(link.fd().try_clone_to_owned().unwrap()));
        thread::sleep(Duration::from_millis(30));
        raw.u32(VERSION).store(ours, Relaxed);
        assert!(attached.join().unwrap().is_ok());
    });
}

// ---- a link in use -----------------------------------------------------------------------------------------------

/// Reads all bytes of the received units, and keeps some units. Returns the number of units, or None after an error.
fn drain(receiver: &mut Receiver, most: usize) -> Option<usize> {
    let mut sum = 0_u64;
    for count in 0..most {
        match receiver.poll() {
            Ok(Some((_, arrived))) => {
                sum += arrived.inline.iter().map(|&b| u64::from(b)).sum::<u64>();
                sum += arrived.buffers.iter().flat_map(bytes).map(|&b| u64::from(b)).sum::<u64>();
            }
            Ok(None) => return Some(count),
            Err(_) => return None,
        }
        std::hint::black_box(sum);
    }
    Some(most)
}

/// The units of a link that can be pushed without waiting.
#[derive(Default)]
struct Units {
    /// A unit that did not fit. It is pushed first, because its fragments may already be sent.
    unsent: Option<(Vec<Part>, Vec<u8>)>,
}

impl Units {
    /// Pushes some units. Returns None after an error.
    fn push(&mut self, sender: &mut Sender, random: &mut Random) -> Option<()> {
        for _ in 0..12 {
            let (parts, inline) = match self.unsent.take() {
                Some(unit) => unit,
                None => Self::unit(sender, random)?,
            };
            let _ = sender.end.permit();
            sender.end.blocks_in_flight().ok()?;
            if sender.end.push_item(ITEM, &parts, &inline).ok()? == Push::Full {
                self.unsent = Some((parts, inline));
                return Some(());
            }
        }
        Some(())
    }

    fn unit(sender: &mut Sender, random: &mut Random) -> Option<(Vec<Part>, Vec<u8>)> {
        let mut parts = Vec::new();
        for _ in 0..random.below(3) {
            if let Some(block) = sender.end.allocate(random.below(9000) as usize).ok()? {
                parts.push(Part::Block(block.into()));
            }
        }
        if random.below(4) == 0 {
            let fragment = random.bytes(100);
            if sender.end.push_fragment(&fragment).ok()? == Push::Done {
                parts.push(Part::Streamed(100));
            }
        }
        let inline = random.below(300) as usize;
        Some((parts, random.bytes(inline)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_cause_at_most_errors(
        seed in any::<u64>(),
        before in 0..6_usize,
        flips in prop::collection::vec(
            (prop_oneof![0..512_usize, RING..RING + 600, 0..CONTROL], any::<u8>()), 1..8),
        steps in 1..12_usize,
    ) {
        let _watchdog = watchdog(30);
        let (link, bells) = open(SMALL);
        let (mut sender, mut receiver) = (Sender::new(&link, &bells), Receiver::new(&link, &bells));
        receiver.end.begin(Stream::default(), 8);
        let (mut units, mut random) = (Units::default(), Random(seed));
        for _ in 0..before {
            prop_assert!(units.push(&mut sender, &mut random).is_some(), "nothing is spoilt yet");
            prop_assert!(drain(&mut receiver, 3).is_some(), "nothing is spoilt yet");
        }
        units.push(&mut sender, &mut random);
        let raw = Raw::new(&link);
        for (place, mask) in flips {
            raw.byte(place).fetch_xor(mask, Relaxed);
        }
        for _ in 0..steps {
            drain(&mut receiver, 40);
            units.push(&mut sender, &mut random);
        }
    }
}

#[test]
fn every_violation_of_the_layout_is_detected() {
    let _watchdog = watchdog(30);
    // (offset in the first unit of the ring, value as u32 at that offset)
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
    for (what, place, value) in unit {
        let (link, bells) = open(SMALL);
        let (mut sender, mut receiver) = (Sender::new(&link, &bells), Receiver::new(&link, &bells));
        let block = sender.end.allocate(5000).unwrap().unwrap();
        sender.end.push_item(ITEM, &[Part::Block(block.into())], b"12345678").unwrap();
        Raw::new(&link).u32(RING + place).store(value, Relaxed);
        assert!(receiver.poll().is_err(), "{what}");
        assert!(receiver.poll().is_err(), "{what}, asked again");
    }
    for (what, place, value) in [
        ("a tail that ran away", TAIL, seal(1 << 40)),
        ("a tail off the grid", TAIL, seal(20)),
        ("a tail inside a unit", TAIL, seal(32)),
        ("a tail without a seal", TAIL, 64),
        ("a wiped tail", TAIL, 0),
        ("a wiped head, before sleeping", HEAD, 0),
    ] {
        let (link, bells) = open(SMALL);
        let mut receiver = Receiver::new(&link, &bells);
        Raw::new(&link).u64(place).store(value, Relaxed);
        assert!(receiver.poll().is_err(), "{what}");
    }
    let (link, bells) = open(SMALL);
    let mut sender = Sender::new(&link, &bells);
    Raw::new(&link).u64(HEAD).store(seal(8), Relaxed);
    assert!(sender.end.blocks_in_flight().is_err(), "a head ahead of the tail");
    Raw::new(&link).u64(RETURN_TAIL).store(seal(1), Relaxed);
    assert!(sender.end.arena().reclaim().is_err(), "a block came back that was not sent");
    assert!(sender.end.allocate(1).is_err());
}

#[test]
fn a_peer_that_constantly_writes_at_random_neither_crashes_nor_blocks_the_ends() {
    let _watchdog = watchdog(30);
    let config = LinkConfig { arena_capacity: 1 << 20, ..SMALL };
    let mut random = Random(3);
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        let (link, bells) = open(config);
        let (mut sender, mut receiver) = (Sender::new(&link, &bells), Receiver::new(&link, &bells));
        receiver.end.begin(Stream::default(), 8);
        let raw = Raw::new(&link);
        let done = AtomicBool::new(false);
        let (mut units, seed) = (Units::default(), random.next());
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed);
                while !done.load(Relaxed) {
                    let place = if random.below(8) == 0 { random.below(512) } else { RING as u64 + random.below(4096) };
                    raw.byte(place as usize).store(random.next() as u8, Relaxed);
                }
            });
            for _ in 0..40 {
                units.push(&mut sender, &mut random);
                drain(&mut receiver, 20);
            }
            done.store(true, Relaxed);
        });
    }
}
