//! A link transports data from a producer to a consumer through a ring of units (messages), an arena for large buffers,
//! and a ring of returned blocks.

pub mod cursor;

#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod carrier;
#[cfg(not(loom))]
pub mod consumer;
#[cfg(not(loom))]
mod ends;
#[cfg(not(loom))]
mod header;
#[cfg(not(loom))]
pub mod lease;
#[cfg(not(loom))]
pub mod producer;
#[cfg(not(loom))]
mod unit;
#[cfg(not(loom))]
pub mod wake;

#[cfg(not(loom))]
pub use ends::{Announcer, Link, Probe};
#[cfg(not(loom))]
pub use header::LinkConfig;
#[cfg(not(loom))]
pub use unit::{OPAQUE, sampled_len};
