//! Converts the bytes of files to records.

pub mod example;
pub mod pickle;
pub mod tar;
pub mod tfrecord;
pub mod wire;
