//! Selects the implementation of [`System`] once per process.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

#[cfg(target_os = "linux")]
use super::linux::{self, Linux};
use super::portable::Portable;
use super::system::System;

fn is_requested() -> bool {
    std::env::var_os("TORCHDATA_PORTABLE").is_some_and(|value| value == "1")
}

fn lacks() -> bool {
    #[cfg(target_os = "linux")]
    return !linux::is_whole();
    #[cfg(not(target_os = "linux"))]
    true
}

pub fn portable() -> bool {
    /// Whether the portable fallback is used (1) or not (2), or 0 before the first call. No lock protects the value,
    /// because a forked child could inherit a lock that another thread holds.
    static CHOICE: AtomicU8 = AtomicU8::new(0);
    if CHOICE.load(Relaxed) == 0 {
        CHOICE.store(if is_requested() || lacks() { 1 } else { 2 }, Relaxed);
    }
    CHOICE.load(Relaxed) == 1
}

/// Returns whether this process uses the portable fallback because an old Linux kernel lacks a required system call, or
/// because a filter forbids the call.
pub fn lacks_system_calls() -> bool {
    cfg!(target_os = "linux") && portable() && !is_requested()
}

pub(super) fn system() -> &'static dyn System {
    #[cfg(target_os = "linux")]
    if !portable() {
        return &Linux;
    }
    &Portable
}
