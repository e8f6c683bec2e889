//! Logs of events and their times, which processes write and main reads, whatever became of their writers.
//!
//! A [`Log`] is shared memory of one process: a header and records of 64 bytes, in the order in which things ended.
//! Main makes one for each process that is to be traced, which opens it by its path and appends to it; nothing is sent
//! and nothing flushed, so what a process that was killed has written is there. A log that is full takes no more, and
//! counts what it left out.

mod log;

pub use log::{Kind, Log, Record};
