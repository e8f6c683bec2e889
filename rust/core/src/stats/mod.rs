//! Counters that other processes can read at any time. Each process of a loader has its own page of counters.
//!
//! A [`Board`] is shared memory that all processes of a loader map. Each process writes only to its own page, and its
//! stores are as cheap as for a private counter. The main process and other programs only read the counters that a
//! process writes. If several counters belong together, they are guarded by a sequence number, which is odd while they
//! are changed (seqlock). Counters never influence decisions. A process on another machine has its own board, and the
//! main process has a copy of its page.

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
