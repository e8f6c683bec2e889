//! Synchronizes the threads of a process. The build flag `loom` replaces the primitives to check the algorithms.

pub mod exclusive;
pub mod primitive;
