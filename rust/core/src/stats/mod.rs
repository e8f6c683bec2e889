//! Counters that other processes can read while their owners work, with a page for each process of a loader.
//!
//! A [`Board`] is shared memory that all processes of a loader map. Each process writes only its own page. Its stores
//! are as cheap as for a private counter. The main process and external observers only read. Counters that belong
//! together are guarded by a sequence number that is odd during changes (a seqlock). Counters never influence
//! decisions. A process on another machine has its own board, and the main process copies its page.

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
