//! Reading ahead: the queue between threads and the consumer of their results, and the place of that consumer.

pub mod ordered;
pub mod place;
