//! Synchronizes threads and processes. The build flag `loom` replaces the primitives to check the algorithms.

pub mod bell;
pub mod cursor;
pub mod primitive;
