//! Contains a queue that threads fill ahead of a consumer, and the position of this consumer.

pub mod ordered;
pub mod position;
