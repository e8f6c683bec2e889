//! Provides shared memory, wake-ups between processes (bells), detection of exited processes, and fork hooks.
//!
//! Two modules implement the interface `System`: `linux` uses system calls of Linux, and `portable` works on any Unix.

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
