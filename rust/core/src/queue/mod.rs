//! Reading ahead: the queue between worker threads and the consumer of their results, and the position of that
//! consumer.

pub mod ordered;
pub mod place;
