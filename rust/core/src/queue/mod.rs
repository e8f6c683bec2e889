//! Lets threads read ahead: a queue for their results, and the position of the consumer.

pub mod ordered;
pub mod place;
