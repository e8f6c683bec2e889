//! Items between processes: who sends, who receives, and the memory between them.

pub mod collector;
mod kinds;
pub mod links;
mod reader;
pub mod sender;
pub mod waiting;
