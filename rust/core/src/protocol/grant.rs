//! Defines the grant: a word that the reader of a link writes to shared memory to request items.
//!
//! ```text
//! 63    48 47       34 33   32 31 30 29            0
//! [ check ][  epoch   ][ pass ][wish][    items    ]
//! ```
//!
//! A grant contains only the low bits of each number, because the writer can infer the high bits from its own numbers.

use super::stream::Stream;
use crate::integrity::{open, seal};

const COUNT_BITS: u32 = 30;
const PASS_BITS: u32 = 2;
const EPOCH_BITS: u32 = 14;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wish {
    /// The total number of items that the reader wants from the stream, modulo 2^30.
    Items(u32),
    /// The reader wants no more items of the current iteration, but may request another iteration.
    Left,
    /// The reader wants no more items in the current epoch.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    stream: Stream,
    wish: Wish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reader {
    /// The reader has not yet reached the writer's stream, and still reads an earlier stream.
    Earlier,
    /// The total number of items that the reader wants from the writer's stream, modulo 2^30.
    Here(u32),
    /// The reader has ended an iteration, but the writer still sends its items. The reader may request another one.
    Left,
    /// The reader has requested the next iteration, but the writer is still sending items of the previous iteration.
    Ahead,
    /// The reader wants no more items in the writer's epoch.
    Done,
}

fn low(value: u32, bits: u32) -> u64 {
    u64::from(value) & ((1 << bits) - 1)
}

/// Returns the signed difference of two numbers, given only the lowest `bits` bits of each number.
fn difference(left: u64, right: u64, bits: u32) -> i64 {
    let shift = 64 - bits;
    (left.wrapping_sub(right) << shift) as i64 >> shift
}

impl Grant {
    pub const NONE: u64 = seal(0);

    pub fn new(stream: Stream, wish: Wish) -> Self {
        Self { stream, wish }
    }

    #[inline]
    pub fn word(self) -> u64 {
        let (wish, count) = match self.wish {
            Wish::Items(count) => (1, low(count, COUNT_BITS)),
            Wish::Left => (2, 0),
            Wish::Done => (3, 0),
        };
        let epoch = low(self.stream.epoch(), EPOCH_BITS);
        let pass = low(self.stream.pass(), PASS_BITS);
        seal((((epoch << PASS_BITS) | pass) << 2 | wish) << COUNT_BITS | count)
    }

    /// Decodes a grant word for a writer in the stream `stream`. Returns None if the word is damaged.
    #[inline]
    pub fn read(word: u64, stream: Stream) -> Option<Reader> {
        let number = open(word)?;
        let count = low(number as u32, COUNT_BITS) as u32;
        let wish = (number >> COUNT_BITS) & 3;
        let pass = number >> (COUNT_BITS + 2);
        let epoch = pass >> PASS_BITS;
        let epochs = difference(epoch, low(stream.epoch(), EPOCH_BITS), EPOCH_BITS);
        let passes = difference(pass, low(stream.pass(), PASS_BITS), PASS_BITS);
        Some(match (wish, epochs) {
            (0, _) => Reader::Earlier,
            (_, i64::MIN..=-1) => Reader::Earlier,
            (_, 1..) => Reader::Done,
            (3, 0) => Reader::Done,
            (2, 0) if passes == 0 => Reader::Left,
            (2, 0) if passes == 1 => Reader::Ahead,
            (1, 0) if passes == 0 => Reader::Here(count),
            (1, 0) if passes == 1 => Reader::Ahead,
            _ => Reader::Earlier,
        })
    }

    /// Returns how many more items the reader accepts. Both `wanted` and `sent` are total numbers of items modulo 2^30.
    #[inline]
    pub fn credit(wanted: u32, sent: u32) -> u32 {
        difference(u64::from(wanted), u64::from(sent), COUNT_BITS).max(0) as u32
    }
}
