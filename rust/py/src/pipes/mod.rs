//! What iteration costs: tokens of who may iterate, guards around users' iterators, the queue of a prefetching thread.

pub mod guard;
pub mod iterators;
pub mod prefetch;
pub mod token;
