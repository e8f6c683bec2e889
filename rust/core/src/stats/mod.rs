//! Counts items, bytes and waits, so that other processes can read the counters at any time. A [`Board`] is shared
//! memory in which each process of a loader writes only to its own page, as fast as to private counters.
//!
//! A sequence number, which is odd during changes, guards counters that belong together (seqlock). Counters never
//! influence decisions.

mod board;
mod carry;
mod clock;
mod flow;
mod layout;
mod read;

pub use board::{Board, PageRef, PipeRef, Role};
pub use clock::{coarse_nanoseconds, nanoseconds};
pub use flow::{FlowRef, WaitRef, Waiting};
pub use layout::{BoardConfig, Flow, PipeRecord, Wait, add};
pub use read::Value;
