//! Units and words on their way between two machines: taken out of a link on one of them, put into its copy on the other.
//!
//! A worker on another machine has a control link and a data link there, and main has a copy of each. Beside either pair
//! stands a carrier, which is the consumer of one link and the producer of the other:
//!
//! ```text
//! main  ── control ──►  carrier  ┄┄ frames ┄┄►  carrier  ── control ──►  child
//!       ◄─── data ────           ◄┄ frames ┄┄            ◄─── data ────
//! ```
//!
//! Units travel undecoded and whole, fragments put together, with the stream and the kind that their producer gave them.
//! What the two ends of a link say to each other by words in its header travels beside them (see [`Words`]). A word that
//! comes late is harmless, as each is the latest of its kind and nobody waits for an older one. One that comes early is
//! harmless, too: it may overtake units published before it, as it may be read before them where there is one link.
//! Words never wait for units, which may lack room until a word is read. Who calls sees to it that frames are put in the
//! order in which they were taken, words in theirs, and each once.
//!
//! A frame is a head and large buffers beside it. Nothing of it is trusted: what contradicts itself is [`Corrupted`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::consumer::{Buffer, Consumer, Unit};
use super::ends::Link;
use super::header::Layout;
use super::producer::{Part, Producer, Push};
use super::unit::sampled_len;
use crate::error::{Corrupted, OpenError, TakeError};
use crate::process::board::BellRef;
use crate::protocol::Stream;

/// Buffers shorter than this lie in the head of a frame.
pub const OUT_OF_BAND: usize = 32 << 10;

/// Set in the length of a buffer that lies beside the head.
const BESIDE: u64 = 1 << 63;
/// Stream, length of the payload, kind, number of buffers.
const UNIT_HEAD: usize = 16;

/// The words of a carrier's two links that the other side is to see, sealed as they are: of the link that it reads the
/// order and the epoch in which its producer starves, of the link that it writes what is granted, how many messages are
/// acknowledged, and in which place.
pub type Words = [u64; 5];

/// Units on their way.
#[derive(Debug, Default)]
pub struct Frame {
    /// All but the large buffers.
    pub head: Vec<u8>,
    /// These, in their order.
    pub buffers: Vec<Buffer>,
    /// Bytes of both.
    pub len: usize,
}

impl Frame {
    fn add(&mut self, stream: Stream, unit: &mut Unit) {
        let count = unit.buffers.len() as u16; // as in the unit's own header
        self.head.extend(stream.raw().to_le_bytes());
        self.head.extend((unit.payload.len() as u32).to_le_bytes());
        self.head.extend(unit.kind.to_le_bytes());
        self.head.extend(count.to_le_bytes());
        for buffer in &unit.buffers {
            let len = buffer.len() as u64;
            let place = if buffer.len() < OUT_OF_BAND { 0 } else { BESIDE };
            self.head.extend((len | place).to_le_bytes());
        }
        self.head.extend(&unit.payload);
        for buffer in unit.buffers.drain(..) {
            self.len += buffer.len();
            if buffer.len() >= OUT_OF_BAND {
                self.buffers.push(buffer);
                continue;
            }
            match buffer {
                Buffer::Owned(bytes) => self.head.extend(&*bytes),
                Buffer::Leased(lease) => {
                    let at = self.head.len();
                    self.head.reserve(lease.len());
                    // SAFETY: there is room for so many bytes, and the lease has as many.
                    unsafe {
                        let to = self.head.as_mut_ptr().add(at);
                        std::ptr::copy_nonoverlapping(lease.as_mut_ptr(), to, lease.len());
                        self.head.set_len(at + lease.len());
                    }
                }
            }
        }
        self.len += UNIT_HEAD + unit.payload.len();
    }
}

/// A unit of a frame.
struct Carried<'a> {
    stream: Stream,
    kind: u16,
    buffers: Vec<&'a [u8]>,
    payload: &'a [u8],
    /// Bytes of the head, and buffers beside it, that are behind it.
    rest: &'a [u8],
    besides: usize,
}

const CONTRADICTS: Corrupted = Corrupted("a frame of units contradicts itself");

/// Takes so many bytes from the front.
fn cut<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], Corrupted> {
    let (front, rest) = bytes.split_at_checked(len).ok_or(CONTRADICTS)?;
    *bytes = rest;
    Ok(front)
}

fn number<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Corrupted> {
    Ok(cut(bytes, N)?.try_into().expect("as many as were cut"))
}

impl<'a> Carried<'a> {
    fn read(mut head: &'a [u8], beside: &[&'a [u8]]) -> Result<Self, Corrupted> {
        let stream = Stream::from_raw(u64::from_le_bytes(number(&mut head)?));
        let len = u32::from_le_bytes(number(&mut head)?);
        let kind = u16::from_le_bytes(number(&mut head)?);
        let count = u16::from_le_bytes(number(&mut head)?);
        let lens: Vec<u64> =
            (0..count).map(|_| number(&mut head).map(u64::from_le_bytes)).collect::<Result<_, Corrupted>>()?;
        let payload = cut(&mut head, len as usize)?;
        let mut beside = beside.iter();
        let before = beside.len();
        let mut buffers = Vec::with_capacity(lens.len());
        for len in lens {
            let bare = usize::try_from(len & !BESIDE).map_err(|_| CONTRADICTS)?;
            buffers.push(if len & BESIDE == 0 {
                cut(&mut head, bare)?
            } else {
                beside.next().copied().filter(|buffer| buffer.len() == bare).ok_or(CONTRADICTS)?
            });
        }
        Ok(Self { stream, kind, buffers, payload, rest: head, besides: before - beside.len() })
    }
}

/// How far a frame was put.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes of the head, and buffers beside it, that are behind.
    head: usize,
    beside: usize,
    /// Buffers of the unit at hand that have found their place, and bytes of the next one that were sent ahead.
    parts: Vec<Part>,
    streamed: usize,
}

/// What keeps a unit from being put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    Nothing,
    Block,
    Room { blocks: usize, payload: usize },
}

/// The one who carries between a link that it reads and a link that it writes, here, and their copies elsewhere.
#[derive(Debug)]
pub struct Carrier {
    inbound: Consumer,
    outbound: Producer,
    incoming: Arc<Layout>,
    outgoing: Arc<Layout>,
    peer: BellRef,
    unit: Unit,
    progress: Progress,
    lack: Lack,
    /// The words that were given away last.
    given: Words,
}

impl Carrier {
    /// Takes the consumer's end of one link and the producer's of another one, whose other ends the process behind `peer`
    /// has.
    pub fn new(inbound: &Link, outbound: &Link, peer: BellRef) -> Result<Self, OpenError> {
        Ok(Self {
            inbound: inbound.consumer(peer.clone())?,
            outbound: outbound.producer(peer.clone())?,
            incoming: Arc::clone(inbound.layout()),
            outgoing: Arc::clone(outbound.layout()),
            peer,
            unit: Unit::default(),
            progress: Progress::default(),
            lack: Lack::Nothing,
            given: [crate::integrity::seal(0); 5], // as they are at a link's birth
        })
    }

    fn words(&self) -> Words {
        let (incoming, outgoing) = (self.incoming.header(), self.outgoing.header());
        // SYNC(order), SYNC(starve), SYNC(grant), SYNC(acknowledge): pair with Producer::order, Announcer::starve,
        // Consumer::grant and Consumer::acknowledge.
        let acknowledged = outgoing.acknowledged.load(Ordering::Acquire);
        [
            incoming.order.load(Ordering::Acquire),
            incoming.starving.load(Ordering::Acquire),
            outgoing.granted.load(Ordering::Acquire),
            acknowledged,
            outgoing.obeyed_at.load(Ordering::Relaxed),
        ]
    }

    /// Whether words have changed since some were given away, or if `units` count, one waits.
    pub fn has_news(&mut self, units: bool) -> bool {
        // A fault counts as news: who takes them reports it.
        self.words() != self.given || units && self.inbound.readable().unwrap_or(true)
    }

    /// Takes units until there are none or the frame has `most` bytes; none if that is 0. Returns the words, if any has
    /// changed.
    pub fn take(&mut self, frame: &mut Frame, most: usize) -> Result<Option<Words>, TakeError> {
        let words = self.words();
        while frame.len < most {
            let Some(stream) = self.inbound.take_any(&mut self.unit)? else { break };
            frame.add(stream, &mut self.unit);
        }
        let have_changed = words != self.given;
        self.given = words;
        Ok(have_changed.then_some(words))
    }

    /// Shows words from the other side to those who wait for them here.
    pub fn put_words(&self, [order, starving, granted, acknowledged, obeyed_at]: Words) {
        let (incoming, outgoing) = (self.incoming.header(), self.outgoing.header());
        // SYNC(order): pairs with Probe::is_superseded.
        outgoing.order.store(order, Ordering::Release);
        // SYNC(starve): pairs with Consumer::starves.
        outgoing.starving.store(starving, Ordering::Release);
        // SYNC(grant): pairs with Producer::permit.
        incoming.granted.store(granted, Ordering::Release);
        incoming.obeyed_at.store(obeyed_at, Ordering::Relaxed);
        // SYNC(acknowledge): pairs with Producer::acknowledged and Probe::obeyed_at.
        incoming.acknowledged.store(acknowledged, Ordering::Release);
        self.peer.ring();
    }

    /// Puts a frame into the link that is written. False if some of it has found no room: to be called again with the
    /// same frame once there is (see [`Carrier::has_room`]).
    pub fn put(&mut self, head: &[u8], beside: &[&[u8]]) -> Result<bool, Corrupted> {
        loop {
            let (left, besides) = (&head[self.progress.head..], &beside[self.progress.beside..]);
            if left.is_empty() {
                self.progress = Progress::default();
                self.outbound.flush();
                return if besides.is_empty() { Ok(true) } else { Err(CONTRADICTS) };
            }
            let unit = Carried::read(left, besides)?;
            self.lack = self.put_unit(&unit)?;
            if self.lack != Lack::Nothing {
                self.outbound.flush();
                return Ok(false);
            }
            self.progress.head = head.len() - unit.rest.len();
            self.progress.beside += unit.besides;
            self.progress.parts.clear();
        }
    }

    fn put_unit(&mut self, unit: &Carried<'_>) -> Result<Lack, Corrupted> {
        let (blocks, payload) = (unit.buffers.len(), unit.payload.len());
        if !self.outbound.fits(blocks, payload) {
            return Err(CONTRADICTS);
        }
        if self.outbound.stream() != unit.stream {
            self.outbound.begin(unit.stream);
        }
        while let Some(buffer) = unit.buffers.get(self.progress.parts.len()) {
            let lack = self.put_buffer(buffer)?;
            if lack != Lack::Nothing {
                return Ok(lack);
            }
        }
        Ok(match self.outbound.push_soon(unit.kind, &self.progress.parts, unit.payload)? {
            Push::Done => Lack::Nothing,
            Push::Full => Lack::Room { blocks, payload },
        })
    }

    /// Brings a buffer into the arena, or if it will not fit, sends it ahead in fragments.
    fn put_buffer(&mut self, bytes: &[u8]) -> Result<Lack, Corrupted> {
        let Self { outbound, progress: Progress { parts, streamed, .. }, .. } = self;
        if *streamed == 0 {
            loop {
                if let Some(block) = outbound.allocate(bytes.len())? {
                    // SAFETY: the block is ours and has room for so many bytes.
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
            let piece = outbound.fragment_len().min(bytes.len() - *streamed);
            if outbound.push_fragment(&bytes[*streamed..*streamed + piece])? == Push::Full {
                return Ok(Lack::Room { blocks: 0, payload: piece });
            }
            *streamed += piece;
        }
        *streamed = 0;
        // SAFETY: a slice is readable.
        parts.push(Part::Streamed(unsafe { sampled_len(bytes.as_ptr(), bytes.len()) }));
        Ok(Lack::Nothing)
    }

    /// Whether what kept a frame from being put is gone.
    pub fn has_room(&mut self) -> bool {
        // A fault counts as room: who puts the frame reports it.
        match self.lack {
            Lack::Nothing => true,
            Lack::Block => self.outbound.worth_allocating().unwrap_or(true),
            Lack::Room { blocks, payload } => self.outbound.writable(blocks, payload).unwrap_or(true),
        }
    }

    /// Gives back memory of the link that is written, if it was not used for a while.
    pub fn tidy(&self) -> Result<bool, Corrupted> {
        self.outbound.arena().tidy()
    }
}
