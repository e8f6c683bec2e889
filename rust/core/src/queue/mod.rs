//! The queue between threads that read ahead and the thread that consumes their results, and the consumer's place.

pub mod ordered;
