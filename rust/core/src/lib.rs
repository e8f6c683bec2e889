//! The engine of torchdata-rs: plain Rust, without Python.
//!
//! See `docs/architecture.md` for how the parts fit together and for the journey of one item.

pub mod bell;
pub mod check;
pub mod cursor;
pub mod error;
pub mod example;
pub mod exclusive;
pub mod primitive;
pub mod protocol;
pub mod round_robin;
pub mod seed;
pub mod strided;
pub mod tar;
pub mod tfrecord;
pub mod wire;

#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
mod coldness;
#[cfg(not(loom))]
pub mod consumer;
#[cfg(not(loom))]
pub mod fork;
#[cfg(not(loom))]
mod header;
#[cfg(not(loom))]
pub mod inherited;
#[cfg(not(loom))]
pub mod link;
#[cfg(not(loom))]
pub mod liveness;
#[cfg(not(loom))]
pub mod prefetch_queue;
#[cfg(not(loom))]
pub mod producer;
#[cfg(not(loom))]
pub mod ranks;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod wake;
