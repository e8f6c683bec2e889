//! Python functions that convert files to records, for pipes.

pub mod gzip;
pub mod pickle;
pub mod tar;
pub mod tfrecord;
