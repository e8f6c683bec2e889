//! Sends and receives items between processes.
//!
//! The main process reads items from worker processes. A loader may have one dispatching process, which distributes the
//! items of a shared pipe to the workers. In names such as `pass_number`, a pass is a single iteration over the
//! dispatched items within an epoch.

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
