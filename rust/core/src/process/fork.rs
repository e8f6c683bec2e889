//! Detects whether the current process was forked, at the cost of one relaxed load.
//!
//! A forked child inherits all leases and blocks of its parent, but only the parent may return them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Whether the fork hook is registered. The flag is atomic, because a forked child could inherit a lock that another
/// thread held. If several threads register the hook, each fork is counted several times, which is harmless.
static HOOKED: AtomicBool = AtomicBool::new(false);

/// Runs in each forked child. Atomic additions and system calls cannot panic, so no panic unwinds into the C library.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
    super::inherited::wipe_what_is_the_parents();
}

/// Returns the same number as `generation`, but only if this process or an ancestor has called `generation` before.
#[inline]
pub fn current() -> u64 {
    GENERATION.load(Relaxed)
}

/// Returns the number of forks since this process or an ancestor first called this function. The number differs between
/// parent and child.
pub fn generation() -> u64 {
    if !HOOKED.load(Relaxed) {
        // The hook is registered before the flag is set, so that every returned number counts later forks. SAFETY:
        // `in_child` only changes atomics and maps memory, without locks or allocation, so it can run in any child.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        HOOKED.store(failed == 0, Relaxed);
    }
    GENERATION.load(Relaxed)
}
