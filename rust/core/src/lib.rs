//! The Rust core of torchdata-rs, which does not depend on Python.
//!
//! `docs/architecture.md` describes how the modules work together.

pub mod cadence;
pub mod error;
#[cfg_attr(loom, allow(dead_code, reason = "links, whose messages are summed, are not part of loom's build"))]
pub mod integrity;
pub mod queue;
pub mod round_robin;
pub mod sampled_clock;
pub mod sampling;
pub mod strided;
pub mod sync;

// Tests with loom use none of the following modules, so these modules are not compiled for loom.
#[cfg(not(loom))]
pub mod formats;
#[cfg(not(loom))]
pub mod images;
#[cfg(all(not(loom), feature = "turbojpeg"))]
pub mod jpeg;
#[cfg(not(loom))]
pub mod link;
#[cfg(not(loom))]
pub mod packing;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod protocol;
#[cfg(not(loom))]
pub mod ranks;
#[cfg(not(loom))]
pub mod seed;
#[cfg(not(loom))]
pub mod stats;
