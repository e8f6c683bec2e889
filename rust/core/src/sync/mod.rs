//! Synchronisation within a process, and the switch by which loom checks it.

pub mod exclusive;
pub mod primitive;
