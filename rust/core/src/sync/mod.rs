//! Synchronizes threads of a process, with a switch for checking the algorithms with loom.

pub mod exclusive;
pub mod primitive;
