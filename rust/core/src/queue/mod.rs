//! Reads ahead with threads: the queue of results, and the consumer's position.

pub mod ordered;
pub mod place;
