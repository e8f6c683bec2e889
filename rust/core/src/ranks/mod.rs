//! Agreement between the ranks of a distributed job, and the ranks at fault if they cannot agree.
//!
//! ```text
//!   rank 1 ──┐  value, late, left, bye, beat
//!   rank 2 ──┼──────────────────────────────►  rank 0
//!   rank 3 ──┘ ◄──────────────────────────────  result, failed, bye, beat
//! ```
//!
//! Rank 0 is the [`hub`], and all other ranks are [`member`]s with one connection to it. In an operation, each rank
//! submits one value, and all receive the minimum. Only the hub sees all connections, so it alone decides that an
//! operation has failed, and sends the reason to all ranks. A member decides on its own only if the hub is disconnected
//! or silent.
//!
//! Member and hub are pure state machines: they process events and times, and produce messages. [`meeting`] transmits
//! the messages over sockets. This module uses a thread that does not depend on the program, so that a busy rank still
//! sends heartbeats.

pub mod hub;
pub mod meeting;
pub mod member;
pub mod message;
mod stream;

use std::time::Duration;

/// The interval between two heartbeats.
pub const BEAT: Duration = Duration::from_millis(250);

/// How long to wait for a message before a rank counts as silent: four heartbeats.
pub const WATCH: Duration = Duration::from_millis(1000);

/// The reason why an operation has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Ranks never connected.
    Absent,
    /// Ranks are reachable, but did not reach the operation in time.
    Late,
    /// The connection of ranks broke: they exited or were disconnected.
    Dead,
    /// Ranks sent no message after the timeout: they exited, are stopped, or are disconnected.
    Silent,
    /// Ranks had left regularly before.
    Parted,
    /// A rank abandoned the operation.
    Left,
}

/// The reason why an operation has failed, and the ranks at fault. All ranks receive the same reason and the same list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// The reason.
    pub fault: Fault,
    /// The ranks at fault, in order. Never empty.
    pub ranks: Vec<u32>,
    /// The rank that noticed the fault, or that timed out.
    pub by: u32,
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The minimum of all values.
    Least(i64),
    /// The operation has failed, and all later ones fail.
    Failed(Verdict),
}

impl Answer {
    /// The result of an operation, given the last finished operation and the verdict.
    fn to(operation: u64, last: Option<(u64, i64)>, verdict: Option<&Verdict>) -> Option<Self> {
        match last {
            Some((ended, value)) if ended == operation => Some(Self::Least(value)),
            _ => verdict.cloned().map(Self::Failed),
        }
    }
}
