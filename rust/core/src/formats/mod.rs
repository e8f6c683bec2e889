//! Converts the bytes of files to records. This code does not depend on links or processes.

pub mod example;
pub mod pickle;
pub mod tar;
pub mod tfrecord;
pub mod wire;
