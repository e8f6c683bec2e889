//! Counters that other processes can read while their owners work: one page for each process of a loader.
//!
//! A [`Board`] is shared memory that all processes of a loader map. Each process writes its own page alone, with stores
//! that cost no more than those of a private counter; main, and observers from outside, only read. Counters that belong
//! together are guarded by a sequence number that is odd while it changes (a seqlock). No counter decides anything. A
//! process of another machine has a board there; main copies its page, and writes it in its stead.

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
pub use read::{Unreadable, Value};
