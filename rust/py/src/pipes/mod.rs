//! Implements the iteration of pipes, and measures the time that each pipe takes.

pub mod calling;
pub mod clocking;
pub mod delivery;
pub mod guard;
pub mod handing;
pub mod iterators;
pub mod metering;
pub mod packing;
pub mod sampling;
pub mod sequence;
pub mod sharing;
pub mod token;
pub mod turn;
