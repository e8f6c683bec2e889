//! Cheap detection of a fork.
//!
//! A forked child inherits all leases and blocks of its parent, but only the parent may return them. The child
//! increments a counter, so a check for a fork costs only one relaxed load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Whether a thread has registered the hook. Locks are not used, because a fork might copy a lock while another thread
/// holds it. Threads that race register the hook several times, so that a fork counts several times, which is harmless.
static HOOKED: AtomicBool = AtomicBool::new(false);

/// Atomic additions and system calls cannot panic, so nothing unwinds into the C library.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
    super::inherited::wipe_what_is_the_parents();
}

/// Returns the same number as `generation`, if `generation` was called before in this process or an ancestor.
#[inline]
pub fn current() -> u64 {
    GENERATION.load(Relaxed)
}

/// The number of forks since the first call in an ancestor process.
///
/// Two calls that return different numbers were made in different processes.
pub fn generation() -> u64 {
    if !HOOKED.load(Relaxed) {
        // The flag is set afterwards, so that every returned number counts later forks. SAFETY: `in_child` only changes
        // atomics and maps memory, without locks or allocation, which is allowed in a forked child.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        HOOKED.store(failed == 0, Relaxed);
    }
    GENERATION.load(Relaxed)
}
