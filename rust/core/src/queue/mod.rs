//! Lets threads read items ahead of a consumer: a queue of results, and the position of the consumer.

pub mod ordered;
pub mod position;
