//! The engine of torchdata-rs: plain Rust, without Python.
//!
//! See `docs/architecture.md` for how the parts fit together and for the journey of one item.
#![warn(missing_docs)]

pub mod prefetch_queue;
pub mod round_robin;
pub mod seed;
