//! Bytes of files to records. Knows nothing of links and processes.

pub mod example;
pub mod pickle;
pub mod tar;
pub mod tfrecord;
pub mod wire;
