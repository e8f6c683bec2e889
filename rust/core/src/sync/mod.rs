//! Synchronizes threads and processes. With the build flag `loom`, the algorithms use loom's primitives, so that loom
//! can check all interleavings.

pub mod bell;
pub mod cursor;
pub mod primitive;
