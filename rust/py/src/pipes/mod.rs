//! The cost of iteration: tokens of who may iterate, guards around users' iterators, the queue of a prefetching thread,
//! whose turn it is to read.

pub mod clocking;
pub mod delivery;
pub mod guard;
pub mod handing;
pub mod iterators;
pub mod prefetch;
pub mod sampling;
pub mod token;
pub mod turn;
