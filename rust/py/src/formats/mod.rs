//! Provides Python functions and classes that read records from files.

pub mod gzip;
pub mod pickle;
pub mod tar;
pub mod tfrecord;
pub mod words;
