//! Synchronization within a process, and the switch for checking it with loom.

pub mod exclusive;
pub mod primitive;
