//! The common parts of the engine's tests: a watchdog, and for tests with a link: items, ends that block, children.

#![allow(dead_code, missing_docs, reason = "each test binary uses its own part")]

use std::sync::mpsc;
use std::time::Duration;

#[cfg(not(loom))]
pub mod child;
#[cfg(not(loom))]
pub mod raw;
#[cfg(not(loom))]
pub mod stream;

/// Aborts the process, naming the test, unless it is dropped in time.
pub struct Watchdog {
    _alive: mpsc::Sender<()>,
}

/// Gives the current test `seconds`; a hang then ends with a message instead of for ever.
pub fn watchdog(seconds: u64) -> Watchdog {
    let (alive, gone) = mpsc::channel::<()>();
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    std::thread::spawn(move || {
        if gone.recv_timeout(Duration::from_secs(seconds)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("watchdog: {name} (process {}) took more than {seconds} s", std::process::id());
            std::process::abort();
        }
    });
    Watchdog { _alive: alive }
}
