//! Detects whether the current process was forked, at the cost of one relaxed load.
//!
//! A forked child inherits copies of its parent's leases and blocks. Only the parent may return them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Whether the fork hook is registered. The flag is atomic, because a forked child could inherit a lock that another
/// thread held. If several threads register the hook, each fork is counted several times, which is harmless.
static HOOKED: AtomicBool = AtomicBool::new(false);

/// The fork hook, which the C library calls in each forked child. No panic can reach the C library, because atomic
/// additions and system calls do not panic.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
    super::inherited::wipe_what_is_the_parents();
}

/// Returns the same number as `generation`, provided that this process or an ancestor has called `generation` before.
#[inline]
pub fn current() -> u64 {
    GENERATION.load(Relaxed)
}

/// Returns the number of forks that were counted since this process or an ancestor first called `generation`. After a
/// fork, the numbers of the parent and the child differ.
pub fn generation() -> u64 {
    if !HOOKED.load(Relaxed) {
        // The hook is registered before the flag is set, so that later forks change every returned number.
        // SAFETY: `in_child` only changes atomics and maps memory. It neither locks nor allocates memory.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        HOOKED.store(failed == 0, Relaxed);
    }
    GENERATION.load(Relaxed)
}
