//! Provides tests with a watchdog, items, blocking wrappers for the ends of links, and child processes.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::mpsc;
use std::time::Duration;

#[cfg(not(loom))]
pub mod child;
pub mod queue;
#[cfg(not(loom))]
pub mod raw;
#[cfg(not(loom))]
pub mod stream;

/// Aborts the process with a message unless the value is dropped before the timeout.
pub struct Watchdog {
    _alive: mpsc::Sender<()>,
}

pub fn watchdog(seconds: u64) -> Watchdog {
    let (alive, ended) = mpsc::channel::<()>();
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(seconds)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("watchdog: {name} (process {}) took more than {seconds} s", std::process::id());
            std::process::abort();
        }
    });
    Watchdog { _alive: alive }
}
