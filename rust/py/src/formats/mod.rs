//! Provides the Python functions and classes with which pipes read records from files.

pub mod gzip;
pub mod pickle;
pub mod tar;
pub mod tfrecord;
