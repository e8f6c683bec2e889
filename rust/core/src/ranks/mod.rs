//! Lets the ranks of a distributed job agree on a number, or determines which ranks prevent an agreement.
//!
//! ```text
//!   rank 1 ──┐  value, late, left, bye, beat
//!   rank 2 ──┼──────────────────────────────►  rank 0
//!   rank 3 ──┘ ◄──────────────────────────────  result, failed, bye, beat
//! ```
//!
//! Rank 0 is the [`hub`], and all other ranks are [`member`]s. In each operation, every rank submits a value and
//! receives the minimum of all values. Only the hub sees all connections, so the hub decides whether an operation has
//! failed.
//!
//! Hub and members are state machines without input or output. The module [`meeting`] sends the messages of the hub and
//! the members.

pub mod hub;
pub mod meeting;
pub mod member;
pub mod message;
mod stream;

use std::time::Duration;

pub const BEAT: Duration = Duration::from_millis(250);

/// A rank that sends no message for this duration is regarded as silent.
pub const WATCH: Duration = Duration::from_millis(1000);

/// The reason why an operation has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Some ranks never connected to the hub.
    Absent,
    /// Some ranks were connected, but did not start the operation before the timeout.
    Late,
    /// The connections to some ranks broke, because their processes exited or were disconnected.
    Lost,
    /// Some ranks sent no message after the timeout, because they have exited, are stopped or are disconnected.
    Silent,
    /// Some ranks left the group normally before the operation.
    Parted,
    /// A rank abandoned the operation by calling `leave`.
    Left,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Verdict {
    pub fault: Fault,
    /// The ranks at fault, in ascending order (never empty).
    pub ranks: Vec<u32>,
    /// The rank that detected the fault or reached its timeout.
    pub by: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer {
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
