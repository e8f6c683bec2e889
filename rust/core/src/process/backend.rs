//! The choice of the system's implementation, once for each process.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

#[cfg(target_os = "linux")]
use super::linux::{self, Linux};
use super::portable::Portable;
use super::system::System;

/// The implementations that can serve a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Choice {
    /// Memory files, futexes and process descriptors, which only Linux has.
    Linux = 1,
    /// The fallback, as `TORCHDATA_PORTABLE=1` in the environment asks, and off Linux.
    Portable = 2,
    /// The fallback, because this Linux lacks something: it is old, or a filter of system calls forbids it.
    Lacking = 3,
}

/// Returns the implementation that serves this process. Children ask for themselves, and find the same.
pub fn choice() -> Choice {
    /// 0 until somebody has asked. Without a lock, which a fork might copy while it is held: all who ask find the same.
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

/// Returns whether the portable fallback serves this process.
pub fn portable() -> bool {
    choice() != Choice::Linux
}

/// Returns the system that serves this process.
pub(super) fn system() -> &'static dyn System {
    #[cfg(target_os = "linux")]
    if !portable() {
        return &Linux;
    }
    &Portable
}
