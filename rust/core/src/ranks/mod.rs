//! Lets the ranks of a distributed job agree on a value, or determines which ranks prevent an agreement.
//!
//! ```text
//!   rank 1 ──┐  value, late, left, bye, beat
//!   rank 2 ──┼──────────────────────────────►  rank 0
//!   rank 3 ──┘ ◄──────────────────────────────  result, failed, bye, beat
//! ```
//!
//! Rank 0 is the [`hub`], and all other ranks are [`member`]s, connected to the hub. In an operation, all ranks submit
//! a value, and receive the minimum. Only the hub sees all connections, so the hub decides whether an operation has
//! failed, unless the hub is disconnected or silent.
//!
//! Member and hub are pure state machines, whose messages [`meeting`] sends over sockets.

pub mod hub;
pub mod meeting;
pub mod member;
pub mod message;
mod stream;

use std::time::Duration;

/// The interval between two heartbeats.
pub const BEAT: Duration = Duration::from_millis(250);

/// The time without a message, equal to four heartbeat intervals, after which a rank counts as silent.
pub const WATCH: Duration = Duration::from_millis(1000);

/// The reason why an operation has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Some ranks have never connected.
    Absent,
    /// Some ranks are connected, but did not start the operation in time.
    Late,
    /// The connection to some ranks broke, because they exited or were disconnected.
    Dead,
    /// Some ranks sent no message after the timeout, because they have exited, are stopped, or are disconnected.
    Silent,
    /// Some ranks had already left normally.
    Parted,
    /// A rank has abandoned the operation by calling `leave`.
    Left,
}

/// A failure report, which all ranks receive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Verdict {
    pub fault: Fault,
    /// The ranks at fault, in ascending order (never empty).
    pub ranks: Vec<u32>,
    /// The rank that has detected the fault, or that has timed out.
    pub by: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The minimum of all values.
    Least(i64),
    /// This operation has failed, and all later operations will fail.
    Failed(Verdict),
}

impl Answer {
    fn to(operation: u64, last: Option<(u64, i64)>, verdict: Option<&Verdict>) -> Option<Self> {
        match last {
            Some((ended, value)) if ended == operation => Some(Self::Least(value)),
            _ => verdict.cloned().map(Self::Failed),
        }
    }
}
