//! Selects the implementation of [`System`] once per process.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

#[cfg(target_os = "linux")]
use super::linux::{self, Linux};
use super::portable::Portable;
use super::system::System;

/// The implementation that this process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Choice {
    /// The implementation for Linux: memory files, futexes and process descriptors.
    Linux = 1,
    /// The portable fallback, because `TORCHDATA_PORTABLE=1` is set in the environment, or the system is not Linux.
    Portable = 2,
    /// The portable fallback, because an old kernel lacks a required system call, or a filter forbids it.
    Lacking = 3,
}

/// Returns the implementation that this process uses.
pub fn choice() -> Choice {
    /// The chosen implementation, or 0 before the first call. No lock protects the value, because a fork could copy a
    /// lock that another thread holds.
    static CHOICE: AtomicU8 = AtomicU8::new(0);
    match CHOICE.load(Relaxed) {
        1 => Choice::Linux,
        2 => Choice::Portable,
        3 => Choice::Lacking,
        _ => {
            let found = choose();
            CHOICE.store(found as u8, Relaxed);
            found
        }
    }
}

fn choose() -> Choice {
    if std::env::var_os("TORCHDATA_PORTABLE").is_some_and(|value| value == "1") || !cfg!(target_os = "linux") {
        return Choice::Portable;
    }
    #[cfg(target_os = "linux")]
    if !linux::is_whole() {
        return Choice::Lacking;
    }
    Choice::Linux
}

/// Returns whether this process uses the portable fallback.
pub fn portable() -> bool {
    choice() != Choice::Linux
}

pub(super) fn system() -> &'static dyn System {
    #[cfg(target_os = "linux")]
    if !portable() {
        return &Linux;
    }
    &Portable
}
