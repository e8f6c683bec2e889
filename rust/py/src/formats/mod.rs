//! Provides the Python functions with which pipes convert files to records.

pub mod gzip;
pub mod pickle;
pub mod tar;
pub mod tfrecord;
