//! The engine of torchdata-rs, written in Rust without any dependency on Python.
//!
//! `docs/architecture.md` describes how the modules work together.

pub mod cadence;
pub mod error;
pub mod formats;
pub mod images;
#[cfg_attr(loom, allow(dead_code, reason = "links, whose messages are summed, are not part of loom's build"))]
pub mod integrity;
pub mod packing;
pub mod protocol;
pub mod queue;
pub mod round_robin;
pub mod sampled_clock;
pub mod sampling;
pub mod seed;
pub mod strided;
pub mod sync;

#[cfg(not(loom))]
pub mod link;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod ranks;
#[cfg(not(loom))]
pub mod stats;
