//! Provides the system calls that the engine needs: shared memory, doorbells, watching processes, and forks.
//!
//! `linux` implements the interface `System` with calls that only Linux has, and `portable` with calls that every Unix
//! has.

mod backend;
pub mod board;
pub mod fork;
pub mod inherited;
#[cfg(target_os = "linux")]
mod linux;
pub mod liveness;
pub mod naming;
mod portable;
pub mod region;
pub mod signals;
mod system;
pub mod turns;
pub mod watching;

pub use backend::{lacks_system_calls, portable};
