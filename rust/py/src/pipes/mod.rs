//! The cost of iteration: tokens of who may iterate, guards around users' iterators, whose turn it is to read.

pub mod clocking;
pub mod delivery;
pub mod guard;
pub mod handing;
pub mod iterators;
pub mod sampling;
pub mod token;
pub mod turn;
