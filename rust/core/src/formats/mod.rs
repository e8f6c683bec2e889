//! Parsers for the file and record formats that the loader reads.

pub mod example;
pub mod pickle;
pub mod tar;
pub mod tfrecord;
pub mod wire;
