//! Sends and receives items between processes.

mod access;
pub mod carrier;
mod clock;
pub mod collector;
mod interrupt;
mod kinds;
pub mod links;
mod meters;
mod outlet;
mod owning;
mod peers;
mod progress;
mod reader;
mod repeating;
mod replacing;
pub mod sender;
pub mod snapshots;
pub mod stats;
pub mod waiting;
mod watched;
