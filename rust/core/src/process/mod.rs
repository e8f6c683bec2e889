//! What the system gives: memory that processes share, doorbells, word of who is alive, forks.
//!
//! Two files give it by one contract, [`System`]: `linux` by what only Linux has, `portable` by what every Unix has. No other
//! file here asks which system it runs on.

pub mod bell;

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
mod portable;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod signals;
#[cfg(not(loom))]
mod system;
#[cfg(not(loom))]
pub mod watching;

#[cfg(not(loom))]
pub use system::{Choice, choice, portable};
