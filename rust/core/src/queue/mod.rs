//! Provides the queue with which threads read ahead of a consumer, and the consumer's position.

pub mod ordered;
pub mod place;
