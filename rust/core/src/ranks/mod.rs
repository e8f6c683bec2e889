//! Agreement between the ranks of a distributed job, and the ranks to blame if there is none.
//!
//! ```text
//!   rank 1 ──┐  value, late, left, bye, beat
//!   rank 2 ──┼──────────────────────────────►  rank 0
//!   rank 3 ──┘ ◄──────────────────────────────  result, failed, bye, beat
//! ```
//!
//! Rank 0 is the [`hub`]: every other rank, a [`member`], has one connection to it. In an operation each rank gives one
//! value, and all get the least of them. The hub alone sees all connections, so it alone judges that an operation
//! cannot end, and all ranks hear the same verdict. A member judges for itself in one case only: the hub is gone or
//! silent.
//!
//! Both are pure state machines: events and the time go in, messages come out. [`meeting`] carries them over sockets,
//! in a thread that needs nothing of the program around it, so that a rank that is busy still gives signs of life.

pub mod hub;
pub mod meeting;
pub mod member;
pub mod message;
mod stream;

use std::time::Duration;

/// Seconds between two signs of life.
pub const BEAT: Duration = Duration::from_millis(250);

/// How long a rank is listened for before it is taken for dead; four beats.
pub const WATCH: Duration = Duration::from_millis(1000);

/// Why an operation can never end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Ranks never came to the opening.
    Absent,
    /// Ranks live, as far as can be told, but did not come to the operation in time.
    Late,
    /// Ranks died or were cut off: their connection broke.
    Dead,
    /// Ranks were not heard of when the time was up: they died, were stopped, or were cut off.
    Silent,
    /// Ranks had said goodbye before.
    Parted,
    /// A rank waits for this operation no longer.
    Left,
}

/// The reason why an operation can never end, and the rank at fault. All ranks are to hear the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// The fault.
    pub fault: Fault,
    /// The ranks to blame, in order. Never empty.
    pub ranks: Vec<u32>,
    /// The rank that noticed, or that waited until the time was up.
    pub by: u32,
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The least value of all ranks.
    Least(i64),
    /// It can never end, nor can any later one.
    Failed(Verdict),
}

impl Answer {
    /// How an operation ended for a rank that knows the last one that did, and perhaps why none does any more.
    fn to(operation: u64, last: Option<(u64, i64)>, verdict: Option<&Verdict>) -> Option<Self> {
        match last {
            Some((ended, value)) if ended == operation => Some(Self::Least(value)),
            _ => verdict.cloned().map(Self::Failed),
        }
    }
}
