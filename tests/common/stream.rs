//! Creates items with known contents. `Sender` and `Receiver` transfer items over a link, and wait if necessary.

use std::sync::Arc;
use std::time::Duration;

use torchdata_core::error::{Corrupted, TakeError};
use torchdata_core::link::consumer::{Buffer, Consumer, Message};
use torchdata_core::link::producer::{Part, Producer, Push};
use torchdata_core::link::{Link, LinkConfig};
use torchdata_core::process::board::{BellBoard, BellRef};
use torchdata_core::process::turns::Turns;
use torchdata_core::protocol::Permit;
use torchdata_core::stats::nanoseconds;

pub const ITEM: u16 = 1;
pub const END: u16 = 2;

pub const CONSUMER: usize = 0;
pub const PRODUCER: usize = 1;

/// The sizes of a small link, so that tests often reach the limits of the link.
pub const SMALL: LinkConfig = LinkConfig { ring_capacity: 4096, return_capacity: 512, arena_capacity: 64 << 10 };

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub inline: Vec<u8>,
    pub buffers: Vec<Vec<u8>>,
}

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// Returns the item number `index` of a random sequence.
pub fn item(seed: u64, index: u64, config: LinkConfig) -> Item {
    let mut random = Random(seed ^ index.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let inline = match random.below(4) {
        0 => random.below(config.ring_capacity / 4 + 1),
        _ => random.below(64),
    };
    let lens: Vec<u64> = match random.below(12) {
        0 => vec![random.below(config.arena_capacity * 2)],
        1 => (0..random.below(5)).map(|_| random.below(config.arena_capacity / 3)).collect(),
        2 | 3 => (0..random.below(4)).map(|_| random.below(3 * 4096)).collect(),
        _ => Vec::new(),
    };
    let inline = random.bytes(inline as usize);
    Item { inline, buffers: lens.into_iter().map(|len| random.bytes(len as usize)).collect() }
}

pub fn open(config: LinkConfig) -> (Link, Arc<BellBoard>) {
    (Link::create(config).unwrap(), BellBoard::create(2).unwrap())
}

/// Waits as `wait_among` in `rust/py/src/transport/waiting.rs` does, so that benchmarks measure the loader's waits.
fn wait(bell: &BellRef, mut ready: impl FnMut() -> bool) {
    static TURNS: Turns = Turns::new();
    if (0..40).any(|_| (ready(), std::hint::spin_loop()).0) {
        return;
    }
    let mut now = nanoseconds();
    let turns = TURNS.begin(now);
    for _ in 0..turns {
        std::thread::yield_now();
        let began = std::mem::replace(&mut now, nanoseconds());
        let continues = TURNS.yielded(began, now, bell.processes());
        if ready() {
            return TURNS.helped();
        }
        if !continues {
            break;
        }
    }
    let mut slice = Duration::from_millis(1);
    while !bell.wait(slice, &mut ready) {
        slice = (slice * 2).min(Duration::from_millis(100));
    }
    TURNS.slept(turns, nanoseconds() - now);
}

pub struct Sender {
    pub end: Producer,
    pub bell: BellRef,
}

impl Sender {
    pub fn new(link: &Link, bells: &Arc<BellBoard>) -> Self {
        let end = link.producer(bells.bell(CONSUMER).unwrap()).unwrap();
        Self { end, bell: bells.bell(PRODUCER).unwrap() }
    }

    pub fn send(&mut self, item: &Item) -> Result<(), Corrupted> {
        if self.end.permit()? != Permit::Now {
            self.end.flush();
            wait(&self.bell, || self.end.permit() != Ok(Permit::Wait));
        }
        let mut parts = Vec::new();
        for buffer in &item.buffers {
            parts.push(self.part(buffer)?);
        }
        while self.end.push_item(ITEM, &parts, &item.inline)? == Push::Full {
            self.wait_for_room(parts.len(), item.inline.len())?;
        }
        Ok(())
    }

    pub fn send_end(&mut self) -> Result<(), Corrupted> {
        while self.end.push(END, &[], &[])? == Push::Full {
            self.wait_for_room(0, 0)?;
        }
        Ok(())
    }

    /// Copies the buffer into a block of shared memory, or sends the buffer as fragments if no block will become free.
    fn part(&mut self, buffer: &[u8]) -> Result<Part, Corrupted> {
        loop {
            if let Some(block) = self.end.allocate(buffer.len())? {
                // SAFETY: the block was allocated for this buffer, and no other code uses the block yet.
                unsafe { std::ptr::copy_nonoverlapping(buffer.as_ptr(), block.as_mut_ptr(), buffer.len()) };
                return Ok(Part::Block(Arc::new(block)));
            }
            if !self.end.blocks_in_flight()? || buffer.len() as u64 > self.end.arena().capacity() {
                return self.stream(buffer);
            }
            self.end.flush();
            self.bell.wait(Duration::from_millis(1), || self.end.blocks_in_flight() != Ok(true));
        }
    }

    pub fn stream(&mut self, buffer: &[u8]) -> Result<Part, Corrupted> {
        for fragment in buffer.chunks(self.end.max_inline()) {
            while self.end.push_fragment(fragment)? == Push::Full {
                self.wait_for_room(0, fragment.len())?;
            }
        }
        Ok(Part::Streamed(buffer.len() as u64))
    }

    fn wait_for_room(&mut self, blocks: usize, payload: usize) -> Result<(), Corrupted> {
        assert!(self.end.fits(blocks, payload));
        self.end.flush();
        wait(&self.bell, || self.end.writable(blocks, payload) != Ok(false));
        self.end.writable(blocks, payload).map(drop)
    }
}

pub struct Receiver {
    pub end: Consumer,
    pub bell: BellRef,
    pub unit: Message,
}

pub struct Arrived {
    pub inline: Vec<u8>,
    pub buffers: Vec<Buffer>,
}

impl Receiver {
    pub fn new(link: &Link, bells: &Arc<BellBoard>) -> Self {
        let end = link.consumer(bells.bell(PRODUCER).unwrap()).unwrap();
        Self { end, bell: bells.bell(CONSUMER).unwrap(), unit: Message::default() }
    }

    /// Returns the next message, or None if the stream has ended or no message has arrived.
    pub fn poll(&mut self) -> Result<Option<(u16, Arrived)>, Corrupted> {
        let mut unit = Message::default();
        match self.end.take(&mut unit) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(TakeError::Corrupted(error)) => return Err(error),
            Err(error @ TakeError::NoMemory(_)) => panic!("{error}"),
        }
        if unit.kind == ITEM {
            self.end.item_taken();
        }
        Ok(Some((unit.kind, Arrived { inline: unit.payload, buffers: unit.buffers })))
    }

    /// Waits for the next message without copying its buffers, and frees the buffers of the previous message.
    pub fn next_unit(&mut self) -> &Message {
        self.unit.buffers.clear();
        loop {
            if self.end.take(&mut self.unit).unwrap() {
                self.end.item_taken();
                return &self.unit;
            }
            wait(&self.bell, || self.end.readable() != Ok(false));
        }
    }

    pub fn receive(&mut self) -> Result<Option<Arrived>, Corrupted> {
        loop {
            if let Some((kind, arrived)) = self.poll()? {
                return Ok((kind == ITEM).then_some(arrived));
            }
            wait(&self.bell, || self.end.readable() != Ok(false));
        }
    }
}

pub fn bytes(buffer: &Buffer) -> &[u8] {
    match buffer {
        // SAFETY: the lease keeps the block allocated, so the producer does not write to the block.
        Buffer::Leased(lease) => unsafe { std::slice::from_raw_parts(lease.as_mut_ptr(), lease.len()) },
        Buffer::Owned(bytes) => bytes,
    }
}

impl Arrived {
    pub fn item(&self) -> Item {
        Item { inline: self.inline.clone(), buffers: self.buffers.iter().map(|b| bytes(b).to_vec()).collect() }
    }
}
