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
    /// The value is 1 for the portable fallback, 2 for Linux, and 0 before the first call of `system`. The code uses no
    /// lock, because another thread could hold the lock during a fork, and the child could never release the lock.
    static CHOICE: AtomicU8 = AtomicU8::new(0);
    if CHOICE.load(Relaxed) == 0 {
        CHOICE.store(if is_requested() || lacks() { 1 } else { 2 }, Relaxed);
    }
    CHOICE.load(Relaxed) == 1
}

/// Returns whether an old Linux kernel or a security filter forces this process to use the portable fallback.
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
