//! Tests `Carrier`, which connects links on two machines. Messages must arrive unchanged and in order. Header fields
//! must arrive even if the ring is full.

#![cfg(not(loom))]

mod common;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::stream::{Random, Sender, open};
use torchdata_core::link::carrier::{Carrier, Frame, OUT_OF_BAND, Words};
use torchdata_core::link::consumer::{Buffer, Consumer, Message};
use torchdata_core::link::producer::{Part, Producer, Push};
use torchdata_core::link::{Link, LinkConfig};
use torchdata_core::process::board::BellBoard;
use torchdata_core::protocol::Stream;

/// A simulated connection between two machines, with a link and a carrier on each machine.
struct Way {
    producer: Producer,
    consumer: Consumer,
    here: Carrier,
    there: Carrier,
    _links: Vec<Link>,
}

fn way(near: u64, far: u64) -> Way {
    let board = BellBoard::create(1).unwrap();
    let bell = || board.bell(0).unwrap();
    let link = |arena_capacity| Link::create(LinkConfig { arena_capacity, ..LinkConfig::default() }).unwrap();
    let links = vec![link(near), link(far), link(0), link(0)];
    let [from, to, back_here, back_there] = &links[..] else { unreachable!() };
    Way {
        producer: from.producer(bell()).unwrap(),
        consumer: to.consumer(bell()).unwrap(),
        here: Carrier::new(from, back_here, bell()).unwrap(),
        there: Carrier::new(back_there, to, bell()).unwrap(),
        _links: links,
    }
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    match buffer {
        Buffer::Owned(bytes) => bytes.to_vec(),
        Buffer::Leased(lease) => lease.private_copy().unwrap(),
    }
}

type Taken = (u16, Vec<u8>, Vec<Vec<u8>>, u64);

/// Transfers a frame between the two carriers, and reads messages from a full link, so that the frame fits.
fn carry(way: &mut Way, most: usize, taken: &mut Vec<Taken>) -> Option<Words> {
    let mut frame = Frame::default();
    let words = way.here.take(&mut frame, most).unwrap();
    let buffers: Vec<Vec<u8>> = frame.buffers.iter().map(bytes_of).collect();
    let slices: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
    let mut unit = Message::default();
    let mut take = |consumer: &mut Consumer| {
        while consumer.take(&mut unit).unwrap() {
            taken.push((
                unit.kind,
                unit.payload.clone(),
                unit.buffers.drain(..).map(|one| bytes_of(&one)).collect(),
                unit.digest,
            ));
        }
    };
    while !way.there.put(&frame.head, &slices).unwrap() {
        take(&mut way.consumer);
        assert!(way.there.has_room(), "all messages were received and acknowledged");
    }
    take(&mut way.consumer);
    words
}

fn push(producer: &mut Producer, kind: u16, buffers: &[Vec<u8>], payload: &[u8]) -> bool {
    let mut parts = Vec::new();
    for buffer in buffers {
        let Some(block) = producer.allocate(buffer.len()).unwrap() else { return false };
        // SAFETY: the block was allocated for this buffer, and no other code uses the block.
        unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), block.as_mut_ptr(), buffer.len()) };
        parts.push(Part::Block(Arc::new(block)));
    }
    producer.push_item(kind, &parts, payload).unwrap() == Push::Done
}

#[test]
fn units_of_all_sizes_arrive_unchanged_with_large_and_small_arenas() {
    for (seed, far) in [(1, 64 << 20), (2, 1 << 20), (3, 0)] {
        let mut rng = Random(seed);
        let mut way = way(64 << 20, far);
        let (mut sent, mut taken) = (Vec::new(), Vec::new());
        let stream = Stream::first(1);
        way.producer.begin(stream);
        way.consumer.begin(stream, 1 << 20);
        for number in 0..300_u32 {
            let payload: Vec<u8> = (0..rng.below(300)).map(|at| (at as u32 + number) as u8).collect();
            let lens = (0..rng.below(4)).map(|_| match rng.below(5) {
                0 => 1 + rng.below(200) as usize,
                1 => OUT_OF_BAND - 1 + rng.below(3) as usize,
                2 => rng.below(500_000) as usize,
                _ => rng.below(20_000) as usize,
            });
            let buffers: Vec<Vec<u8>> = lens
                .collect::<Vec<_>>()
                .into_iter()
                .map(|len| (0..len).map(|at| (at as u32 * 7 + number) as u8).collect())
                .collect();
            while !push(&mut way.producer, number as u16 % 4, &buffers, &payload) {
                carry(&mut way, 1 + rng.below(2_000_000) as usize, &mut taken);
            }
            sent.push((number as u16 % 4, payload, buffers));
            if rng.below(8) == 0 {
                carry(&mut way, 1 + rng.below(2_000_000) as usize, &mut taken);
            }
        }
        let mut account = torchdata_core::protocol::Account::default();
        for _ in 0..1000 {
            carry(&mut way, 1 << 20, &mut taken);
        }
        for (_, _, _, digest) in &taken {
            account.count(*digest);
        }
        assert!(
            taken
                .iter()
                .map(|(kind, payload, buffers, _)| (*kind, payload, buffers))
                .eq(sent.iter().map(|(kind, payload, buffers)| (*kind, payload, buffers)))
        );
        assert_eq!(account, way.producer.account(), "the checksums are those of the producer");
    }
}

#[test]
fn units_keep_their_streams_and_units_of_an_abandoned_epoch_are_dropped() {
    let mut way = way(1 << 20, 1 << 20);
    let mut taken = Vec::new();
    for epoch in 1..4 {
        way.producer.begin(Stream::first(epoch));
        assert!(push(&mut way.producer, 0, &[], &[epoch as u8]));
    }
    way.consumer.begin(Stream::first(2), 8);
    carry(&mut way, 1 << 20, &mut taken);
    assert_eq!(taken.iter().map(|(_, payload, ..)| payload[0]).collect::<Vec<_>>(), [2]);
    way.consumer.begin(Stream::first(3), 8);
    carry(&mut way, 1 << 20, &mut taken);
    assert_eq!(taken.iter().map(|(_, payload, ..)| payload[0]).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn words_arrive_at_once_although_earlier_units_are_pending() {
    let mut way = way(1 << 20, 1 << 20);
    let mut taken = Vec::new();
    way.producer.begin(Stream::first(1));
    way.consumer.begin(Stream::first(1), 8);
    for number in 0..3 {
        assert!(push(&mut way.producer, 0, &[], &[number; 100]));
    }
    assert!(way.here.has_news(true) && !way.here.has_news(false), "units alone");
    way.producer.order(7);
    assert!(way.here.has_news(false));
    let words = carry(&mut way, 0, &mut taken).expect("no unit is taken");
    assert!(taken.is_empty() && way.here.has_news(true) && !way.here.has_news(false));
    way.there.put_words(words);
    assert_eq!(carry(&mut way, 1, &mut taken), None, "they are passed only once");
    assert_eq!(carry(&mut way, 1 << 20, &mut taken), None);
    assert_eq!(taken.len(), 3);
    assert!(!way.here.has_news(true));
}

#[test]
fn an_inconsistent_frame_is_reported() {
    let mut way = way(1 << 20, 1 << 20);
    way.producer.begin(Stream::first(1));
    assert!(push(&mut way.producer, 0, &[vec![1; 100], vec![2; OUT_OF_BAND]], &[3; 50]));
    let mut frame = Frame::default();
    way.here.take(&mut frame, 1).unwrap();
    let buffer = bytes_of(&frame.buffers[0]);
    for cut in 1..frame.head.len() {
        assert!(way.there.put(&frame.head[..cut], &[&buffer]).is_err(), "cut at {cut}");
    }
    assert!(way.there.put(&frame.head, &[]).is_err());
    assert!(way.there.put(&frame.head, &[&buffer[1..]]).is_err());
    assert!(way.there.put(&frame.head, &[&buffer]).unwrap());
}

#[test]
fn memory_that_was_not_used_for_a_while_returns_to_the_system() {
    let mut way = way(64 << 20, 64 << 20);
    let allocated = |way: &Way| {
        let file = File::from(way._links[1].region().fd().try_clone_to_owned().unwrap());
        file.metadata().unwrap().blocks() * 512
    };
    let stream = Stream::first(1);
    way.producer.begin(stream);
    way.consumer.begin(stream, 1 << 20);
    let before = allocated(&way);
    let mut taken = Vec::new();
    for number in 0..4 {
        assert!(push(&mut way.producer, number, &[vec![7; 8 << 20]], b"payload"));
    }
    way.producer.flush();
    carry(&mut way, usize::MAX, &mut taken);
    assert_eq!(taken.len(), 4);
    assert!(allocated(&way) >= before + (8 << 20));
    let start = Instant::now();
    for seconds in [2, 4, 6] {
        way.there.tidy(start + Duration::from_secs(seconds)).unwrap();
    }
    assert!(allocated(&way) < before + (4 << 20));
    assert!(push(&mut way.producer, 4, &[vec![9; 8 << 20]], b"later"));
    way.producer.flush();
    carry(&mut way, usize::MAX, &mut taken);
    assert!(taken.last().unwrap().2[0].iter().all(|&byte| byte == 9));
}

#[test]
fn idle_pages_return_to_the_system_and_pages_of_blocks_stay() {
    const LEN: usize = 16 << 20;
    let (link, bells) = open(LinkConfig { arena_capacity: 8 * LEN as u64, ..LinkConfig::default() });
    let sender = Sender::new(&link, &bells);
    let arena = sender.end.arena();
    let resident = || 512 * rustix::fs::fstat(link.region().fd()).unwrap().st_blocks as usize;
    let block = |value: u8| {
        let block = arena.allocate(LEN).unwrap();
        // SAFETY: the block has `LEN` bytes, and no other code uses the block.
        unsafe { std::ptr::write_bytes(block.as_mut_ptr(), value, LEN) };
        block
    };
    let start = Instant::now();
    let tidy = |seconds| arena.tidy(start + Duration::from_secs(seconds));
    let [first, second, third] = [block(1), block(2), block(3)];
    assert!(resident() >= 3 * LEN);
    drop((first, third));
    assert_eq!(tidy(2), Ok(true));
    assert!(resident() >= 3 * LEN, "pages that were in use recently stay");
    assert_eq!(tidy(6), Ok(true));
    assert!((LEN..LEN + (4 << 20)).contains(&resident()), "{} bytes of {LEN} remain", resident());
    // SAFETY: the block has `LEN` bytes, which stay valid until the block is dropped.
    let kept = unsafe { std::slice::from_raw_parts(second.as_mut_ptr(), LEN) };
    assert!(kept.iter().all(|&byte| byte == 2), "an allocated block lost bytes");
    let again = block(4);
    assert_eq!(again.offset(), 0, "the block has the lowest offset again");
    drop((again, second));
    assert_eq!((tidy(10), tidy(14)), (Ok(true), Ok(false)));
    assert!(resident() < 4 << 20 && !arena.is_untidy());
}
