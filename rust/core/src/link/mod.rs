//! A link sends data from a producer to a consumer, usually in two processes. The shared memory of a link contains a
//! ring of messages and an arena for large buffers. Through a second ring, the consumer returns blocks of the arena.

pub mod arena;
pub mod carrier;
pub mod consumer;
mod ends;
mod header;
pub mod lease;
mod message;
pub mod producer;
pub mod wake;

pub use ends::Link;
pub use header::LinkConfig;
pub use message::{OPAQUE, sampled_len};
