//! Counts items, bytes and waits in shared memory, so that other processes can read the counts at any time.
//!
//! Each process writes only to its own page of a [`Board`], which is as fast as writing to private counters.

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
