//! Reading ahead: the queue between worker threads and the consumer of their results, and the consumer's position.

pub mod ordered;
pub mod place;
