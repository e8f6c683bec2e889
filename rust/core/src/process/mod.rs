//! Provides the system calls that the engine needs: shared memory, doorbells, watching processes, and forks.
//!
//! `linux` implements the interface `System` with calls that only Linux has, and `portable` with calls that every Unix
//! has.

pub mod bell;

#[cfg(not(loom))]
mod backend;
#[cfg(not(loom))]
pub mod board;
#[cfg(not(loom))]
pub mod fork;
#[cfg(not(loom))]
pub mod inherited;
#[cfg(all(not(loom), target_os = "linux"))]
mod linux;
#[cfg(not(loom))]
pub mod liveness;
#[cfg(not(loom))]
pub mod naming;
#[cfg(not(loom))]
mod portable;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod signals;
#[cfg(not(loom))]
mod system;
pub mod turns;
#[cfg(not(loom))]
pub mod watching;

#[cfg(not(loom))]
pub use backend::{Choice, choice, portable};
