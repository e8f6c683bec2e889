//! Random writes into the shared memory of links in use: the result is exact data or an error, and never wrong data or
//! a hang.
//!
//! The writes affect everything that the protocol depends on: the header, the data ring and the return ring. The
//! contents of blocks have no checks.
#![cfg(not(loom))]
#![allow(missing_docs)]

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use common::raw::Raw;
use common::stream::{Arrived, END, ITEM, Item, Random, Receiver, SMALL, Sender, open};
use common::watchdog;
use torchdata_core::error::Corrupted;
use torchdata_core::link::LinkConfig;
use torchdata_core::link::producer::{Part, Push};
use torchdata_core::protocol::{Permit, Stream};

const CONFIG: LinkConfig = LinkConfig { arena_capacity: 96 << 10, ..SMALL };
const ITEMS: u64 = 80;
const RING: u64 = 4096;
const RETURN_RING: u64 = RING + SMALL.ring_capacity;
const ARENA: u64 = RETURN_RING + 8 * SMALL.return_capacity;

/// Item `index` of the run with this seed.
fn item(seed: u64, index: u64) -> Item {
    let mut random = Random(seed ^ index.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let inline = random.below(200) as usize;
    let lens: Vec<u64> = match random.below(4) {
        0 => (0..1 + random.below(3)).map(|_| random.below(9000)).collect(),
        1 => vec![random.below(1000)],
        _ => Vec::new(),
    };
    Item { inline: random.bytes(inline), buffers: lens.into_iter().map(|len| random.bytes(len as usize)).collect() }
}

/// The sending end, which never waits.
struct Sending {
    sender: Sender,
    seed: u64,
    index: u64,
    parts: Vec<Part>,
    ended: bool,
}

impl Sending {
    /// Takes one step. Returns Full if it would have to wait.
    fn step(&mut self) -> Result<Push, Corrupted> {
        if self.index == ITEMS {
            let pushed = if self.ended { Push::Full } else { self.sender.end.push(END, &[], &[])? };
            self.ended |= pushed == Push::Done;
            return Ok(pushed);
        }
        if self.sender.end.permit()? != Permit::Now {
            return Ok(Push::Full);
        }
        let item = item(self.seed, self.index);
        while let Some(buffer) = item.buffers.get(self.parts.len()) {
            // Only the last buffer is streamed, because a step that ends between two fragments may be followed by
            // another unit.
            let part = if buffer.len() < 1000 && self.parts.len() + 1 == item.buffers.len() {
                if self.sender.end.push_fragment(buffer)? == Push::Full {
                    return Ok(Push::Full);
                }
                Part::Streamed(buffer.len() as u64)
            } else {
                let Some(block) = self.sender.end.allocate(buffer.len())? else { return Ok(Push::Full) };
                // SAFETY: the block is at least as long as the buffer, and no other code uses it yet.
                unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), block.as_mut_ptr(), buffer.len()) };
                Part::Block(Arc::new(block))
            };
            self.parts.push(part);
        }
        let pushed = self.sender.end.push_item(ITEM, &self.parts, &item.inline)?;
        if pushed == Push::Done {
            self.index += 1;
            self.parts.clear();
        }
        Ok(pushed)
    }
}

/// The receiving end, which keeps some of the items.
struct Receiving {
    receiver: Receiver,
    seed: u64,
    index: u64,
    held: VecDeque<(u64, Arrived)>,
    ended: bool,
}

impl Receiving {
    fn check(&self, index: u64, arrived: &Arrived) {
        assert!(arrived.item() == item(self.seed, index), "seed {}: item {index} differs", self.seed);
    }

    fn step(&mut self) -> Result<(), Corrupted> {
        match self.receiver.poll()? {
            Some((ITEM, arrived)) => {
                assert!(!self.ended && self.index < ITEMS, "seed {}: more came than was sent", self.seed);
                self.check(self.index, &arrived);
                self.held.push_back((self.index, arrived));
                self.index += 1;
            }
            Some((END, _)) => {
                assert_eq!(self.index, ITEMS, "seed {}: items are missing at the end", self.seed);
                self.ended = true;
            }
            Some((kind, _)) => panic!("seed {}: a unit of kind {kind} came", self.seed),
            None => {}
        }
        Ok(())
    }

    /// Returns all but the last `keep` items, after checking that they have not changed.
    fn give_back(&mut self, keep: usize) {
        while self.held.len() > keep {
            let (index, arrived) = self.held.pop_front().expect("there are more than none");
            self.check(index, &arrived);
        }
    }
}

fn ends(seed: u64) -> (Raw, Sending, Receiving) {
    let (link, bells) = open(CONFIG);
    let (sender, mut receiver) = (Sender::new(&link, &bells), Receiver::new(&link, &bells));
    receiver.end.begin(Stream::default(), 8);
    let sending = Sending { sender, seed, index: 0, parts: Vec::new(), ended: false };
    (Raw::new(&link), sending, Receiving { receiver, seed, index: 0, held: VecDeque::new(), ended: false })
}

/// Overwrites a random location: a bit, a byte, a word or a range with zeros.
fn scribble(raw: &Raw, random: &mut Random) {
    let place = match random.below(4) {
        0 => random.below(768),
        1 => RETURN_RING + random.below(ARENA - RETURN_RING),
        2 => RING + random.below(SMALL.ring_capacity),
        _ => RING + random.below(600),
    };
    let word = raw.u64(place as usize / 8 * 8);
    match random.below(6) {
        0 => drop(raw.byte(place as usize).fetch_xor(1 << random.below(8), Relaxed)),
        1 => raw.byte(place as usize).store(random.next() as u8, Relaxed),
        2 => word.store(random.next(), Relaxed),
        3 => drop(word.fetch_add(8 * random.below(16), Relaxed)),
        4 => drop(word.fetch_sub(8 * random.below(16), Relaxed)),
        _ => (place / 8..place / 8 + 4)
            .map(|word| 8 * word)
            .filter(|place| *place < ARENA)
            .for_each(|place| raw.u64(place as usize).store(0, Relaxed)),
    }
}

/// Runs both ends in one thread, in steps that depend only on the seed. Returns whether damage was reported.
fn run(seed: u64) -> bool {
    let mut random = Random(seed);
    let (raw, mut sending, mut receiving) = ends(seed);
    let mut scribbles = 1 + random.below(3);
    let mut at = random.below(200);
    for step in 0..50_000 {
        if step == at && scribbles > 0 {
            scribble(&raw, &mut random);
            scribbles -= 1;
            at += random.below(40);
        }
        let stepped = match random.below(5) {
            0 | 1 => sending.step().map(drop),
            2 => {
                receiving.give_back(random.below(5) as usize);
                Ok(())
            }
            _ => receiving.step(),
        };
        if stepped.is_err() {
            // Ends that are used after an error may report others, but do not panic.
            for _ in 0..20 {
                let _ = (sending.step(), receiving.receiver.poll());
            }
            receiving.give_back(0);
            return true;
        }
        if receiving.ended {
            receiving.give_back(0);
            return false;
        }
    }
    panic!("seed {seed}: no error, but no end either: {} items sent, {} received", sending.index, receiving.index);
}

#[test]
fn random_writes_result_in_exact_data_or_an_error() {
    let _watchdog = watchdog(100);
    let reported = (0..2000).filter(|&seed| run(seed)).count();
    // Most locations are unused most of the time. But if no write had an effect, the test would be worthless.
    assert!((200..1950).contains(&reported), "{reported} of 2000 runs reported damage");
}

#[test]
fn ends_beside_a_thread_that_writes_at_random_get_exact_data_or_an_error() {
    let _watchdog = watchdog(100);
    for seed in 0..150 {
        let (raw, mut sending, mut receiving) = ends(seed);
        let over = AtomicBool::new(false);
        let deadline = Instant::now() + Duration::from_secs(20);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed);
                for _ in 0..3 {
                    thread::sleep(Duration::from_micros(random.below(300)));
                    scribble(&raw, &mut random);
                }
            });
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    match sending.step() {
                        Ok(Push::Done) => {}
                        Ok(Push::Full) => thread::yield_now(),
                        Err(_) => over.store(true, Relaxed),
                    }
                }
            });
            while !over.load(Relaxed) {
                assert!(Instant::now() < deadline, "seed {seed}: no error, but no end either");
                if receiving.step().is_err() || receiving.ended {
                    over.store(true, Relaxed);
                }
                receiving.give_back(3);
            }
            over.store(true, Relaxed);
        });
        receiving.give_back(0);
    }
}
