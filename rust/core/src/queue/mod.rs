//! Supports reading ahead with threads: a queue for the results of the threads, and the position of the consumer.

pub mod ordered;
pub mod place;
