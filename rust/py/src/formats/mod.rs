//! Files into records, for the pipes that read them.

pub mod gzip;
pub mod pickle;
pub mod tar;
pub mod tfrecord;
