//! Connects two links on two machines, so that a message written to the first link arrives in the second link.
//!
//! ```text
//! main  ── control ──►  carrier  ┄┄ frames ┄┄►  carrier  ── control ──►  child
//!       ◄─── data ────           ◄┄ frames ┄┄            ◄─── data ────
//! ```
//!
//! Control words (numbers in the link's header) may overtake earlier messages, because readers need only their latest
//! values. The caller must send each frame exactly once and in order.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::consumer::{Buffer, Consumer, Message};
use super::ends::Link;
use super::header::Layout;
use super::message::sampled_len;
use super::producer::{Part, Producer, Push};
use crate::error::{Corrupted, NoMemory, OpenError, TakeError};
use crate::process::board::BellRef;
use crate::protocol::Stream;

/// In a frame, each buffer of at least `OUT_OF_BAND` bytes is sent separately from the smaller data.
pub const OUT_OF_BAND: usize = 32 << 10;

const SEPARATE: u64 = 1 << 63;
const TIDY_EVERY: Duration = Duration::from_secs(1);
const MESSAGE_HEAD: usize = 16;

/// The control words that a carrier transfers: `order`, `starving`, `granted` and `acknowledged`.
pub type Words = [u64; 4];

/// Several messages that are sent to another machine together.
#[derive(Debug, Default)]
pub struct Frame {
    pub head: Vec<u8>,
    pub buffers: Vec<Buffer>,
    pub len: usize,
}

impl Frame {
    fn add(&mut self, stream: Stream, message: &mut Message) -> Result<(), NoMemory> {
        let count = message.buffers.len() as u16; // the message header stores this number as a `u16`
        self.head.extend(stream.raw().to_le_bytes());
        self.head.extend((message.payload.len() as u32).to_le_bytes());
        self.head.extend(message.kind.to_le_bytes());
        self.head.extend(count.to_le_bytes());
        for buffer in &message.buffers {
            let len = buffer.len() as u64;
            let flag = if buffer.len() < OUT_OF_BAND { 0 } else { SEPARATE };
            self.head.extend((len | flag).to_le_bytes());
        }
        self.head.extend(&message.payload);
        for buffer in message.buffers.drain(..) {
            self.len += buffer.len();
            if buffer.len() >= OUT_OF_BAND {
                self.buffers.push(buffer);
                continue;
            }
            match buffer {
                Buffer::Owned(bytes) => self.head.extend(&*bytes),
                Buffer::Leased(lease) => lease.append_to(&mut self.head)?,
            }
        }
        self.len += MESSAGE_HEAD + message.payload.len();
        Ok(())
    }
}

struct Carried<'a> {
    stream: Stream,
    kind: u16,
    buffers: Vec<&'a [u8]>,
    payload: &'a [u8],
    rest: &'a [u8],
    separate_buffers: usize,
}

const CONTRADICTS: Corrupted = Corrupted("a frame of messages is inconsistent");

fn cut<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], Corrupted> {
    bytes.split_off(..len).ok_or(CONTRADICTS)
}

fn number<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Corrupted> {
    Ok(cut(bytes, N)?.try_into().expect("`cut` returns this length"))
}

impl<'a> Carried<'a> {
    fn read(mut head: &'a [u8], separate: &[&'a [u8]]) -> Result<Self, Corrupted> {
        let stream = Stream::from_raw(u64::from_le_bytes(number(&mut head)?));
        let len = u32::from_le_bytes(number(&mut head)?);
        let kind = u16::from_le_bytes(number(&mut head)?);
        let count = u16::from_le_bytes(number(&mut head)?);
        let lens: Vec<u64> =
            (0..count).map(|_| number(&mut head).map(u64::from_le_bytes)).collect::<Result<_, Corrupted>>()?;
        let payload = cut(&mut head, len as usize)?;
        let mut remaining = separate.iter();
        let mut buffers = Vec::with_capacity(lens.len());
        for len in lens {
            let bare = usize::try_from(len & !SEPARATE).map_err(|_| CONTRADICTS)?;
            buffers.push(if len & SEPARATE == 0 {
                cut(&mut head, bare)?
            } else {
                remaining.next().copied().filter(|buffer| buffer.len() == bare).ok_or(CONTRADICTS)?
            });
        }
        let separate_buffers = separate.len() - remaining.len();
        Ok(Self { stream, kind, buffers, payload, rest: head, separate_buffers })
    }
}

#[derive(Debug, Default)]
struct FrameProgress {
    head_bytes: usize,
    separate_buffers: usize,
    parts: Vec<Part>,
    streamed: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    Nothing,
    Block,
    Room { blocks: usize, payload: usize },
}

#[derive(Debug)]
pub struct Carrier {
    inbound: Consumer,
    outbound: Producer,
    incoming: Arc<Layout>,
    outgoing: Arc<Layout>,
    peer: BellRef,
    message: Message,
    progress: FrameProgress,
    lack: Lack,
    taken: Words,
    tidied: Instant,
}

impl Carrier {
    pub fn new(inbound: &Link, outbound: &Link, peer: BellRef) -> Result<Self, OpenError> {
        Ok(Self {
            inbound: inbound.consumer(peer.clone())?,
            outbound: outbound.producer(peer.clone())?,
            incoming: Arc::clone(&inbound.layout),
            outgoing: Arc::clone(&outbound.layout),
            peer,
            message: Message::default(),
            progress: FrameProgress::default(),
            lack: Lack::Nothing,
            taken: [crate::integrity::seal(0); 4],
            tidied: Instant::now(),
        })
    }

    fn words(&self) -> Words {
        let (incoming, outgoing) = (self.incoming.header(), self.outgoing.header());
        // SYNC(order), SYNC(starve), SYNC(grant), SYNC(acknowledge): pair with Producer::order, Link::starve,
        // Consumer::grant and Consumer::acknowledge.
        [
            incoming.order.load(Ordering::Acquire),
            incoming.starving.load(Ordering::Acquire),
            outgoing.granted.load(Ordering::Acquire),
            outgoing.acknowledged.load(Ordering::Acquire),
        ]
    }

    /// Returns whether a control word has changed since the last `take`. If `messages` is true, also returns true if a
    /// message has arrived.
    pub fn has_news(&mut self, messages: bool) -> bool {
        // A damaged link is treated like a link with a message, because the caller then calls `take`, which reports the
        // damage.
        self.words() != self.taken || messages && self.inbound.readable().unwrap_or(true)
    }

    /// Moves messages to the frame until the frame has `most` bytes. Returns the control words if a control word has
    /// changed.
    pub fn take(&mut self, frame: &mut Frame, most: usize) -> Result<Option<Words>, TakeError> {
        let words = self.words();
        while frame.len < most {
            let Some(stream) = self.inbound.next::<true>(&mut self.message)? else { break };
            frame.add(stream, &mut self.message)?;
        }
        let have_changed = words != self.taken;
        self.taken = words;
        Ok(have_changed.then_some(words))
    }

    pub fn put_words(&self, [order, starving, granted, acknowledged]: Words) {
        let (incoming, outgoing) = (self.incoming.header(), self.outgoing.header());
        // SYNC(order): pairs with Link::is_superseded.
        outgoing.order.store(order, Ordering::Release);
        // SYNC(starve): pairs with Consumer::starves.
        outgoing.starving.store(starving, Ordering::Release);
        // SYNC(grant): pairs with Producer::permit.
        incoming.granted.store(granted, Ordering::Release);
        // SYNC(acknowledge): pairs with Producer::acknowledged.
        incoming.acknowledged.store(acknowledged, Ordering::Release);
        self.peer.ring();
    }

    /// Writes the messages of a received frame to this machine's link. If the link is full, returns false, and the
    /// caller must pass the same frame in the next call of `put`.
    pub fn put(&mut self, head: &[u8], separate: &[&[u8]]) -> Result<bool, Corrupted> {
        loop {
            let (head_left, separate_left) =
                (&head[self.progress.head_bytes..], &separate[self.progress.separate_buffers..]);
            if head_left.is_empty() {
                self.progress = FrameProgress::default();
                self.outbound.flush();
                return if separate_left.is_empty() { Ok(true) } else { Err(CONTRADICTS) };
            }
            let message = Carried::read(head_left, separate_left)?;
            self.lack = self.put_message(&message)?;
            if self.lack != Lack::Nothing {
                self.outbound.flush();
                return Ok(false);
            }
            self.progress.head_bytes = head.len() - message.rest.len();
            self.progress.separate_buffers += message.separate_buffers;
            self.progress.parts.clear();
        }
    }

    fn put_message(&mut self, message: &Carried<'_>) -> Result<Lack, Corrupted> {
        let (blocks, payload) = (message.buffers.len(), message.payload.len());
        if !self.outbound.fits(blocks, payload) {
            return Err(CONTRADICTS);
        }
        if self.outbound.stream() != message.stream {
            self.outbound.begin(message.stream);
        }
        while let Some(buffer) = message.buffers.get(self.progress.parts.len()) {
            let lack = self.put_buffer(buffer)?;
            if lack != Lack::Nothing {
                return Ok(lack);
            }
        }
        Ok(match self.outbound.push_soon(message.kind, &self.progress.parts, message.payload)? {
            Push::Done => Lack::Nothing,
            Push::Full => Lack::Room { blocks, payload },
        })
    }

    /// Copies a buffer into the arena. If the arena stays too full, sends fragments of the buffer instead.
    fn put_buffer(&mut self, bytes: &[u8]) -> Result<Lack, Corrupted> {
        let Self { outbound, progress: FrameProgress { parts, streamed, .. }, .. } = self;
        if *streamed == 0 {
            loop {
                if let Some(block) = outbound.allocate(bytes.len())? {
                    // SAFETY: the new block has room for `bytes.len()` bytes, and no other code uses the block.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), block.as_mut_ptr(), bytes.len()) };
                    parts.push(Part::Block(Arc::new(block)));
                    return Ok(Lack::Nothing);
                }
                if !outbound.blocks_in_flight()? {
                    break;
                }
                if !outbound.worth_allocating()? {
                    return Ok(Lack::Block);
                }
            }
        }
        while *streamed < bytes.len() {
            let piece = outbound.max_inline().min(bytes.len() - *streamed);
            if outbound.push_fragment(&bytes[*streamed..*streamed + piece])? == Push::Full {
                return Ok(Lack::Room { blocks: 0, payload: piece });
            }
            *streamed += piece;
        }
        *streamed = 0;
        // SAFETY: `bytes` is a slice, so all its bytes are readable.
        parts.push(Part::Streamed(unsafe { sampled_len(bytes.as_ptr(), bytes.len()) }));
        Ok(Lack::Nothing)
    }

    pub fn tidy(&mut self, now: Instant) -> Result<(), Corrupted> {
        let arena = self.outbound.arena();
        if arena.is_untidy() && now.saturating_duration_since(self.tidied) >= TIDY_EVERY {
            self.tidied = now;
            arena.tidy(now)?;
        }
        Ok(())
    }

    pub fn has_room(&mut self) -> bool {
        // A damaged link is treated like a link with space, because the caller then calls `put`, which reports the
        // damage.
        match self.lack {
            Lack::Nothing => true,
            Lack::Block => self.outbound.worth_allocating().unwrap_or(true),
            Lack::Room { blocks, payload } => self.outbound.writable(blocks, payload).unwrap_or(true),
        }
    }
}
