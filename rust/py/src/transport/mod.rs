//! Items between processes: who sends, who receives, and the memory between them.

pub mod collector;
mod kinds;
pub mod links;
mod outlet;
mod owning;
mod reader;
mod repeating;
mod replacing;
pub mod sender;
pub mod snapshots;
pub mod stats;
pub mod waiting;
mod watched;
