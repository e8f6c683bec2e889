//! Detects whether the current process was forked, at the cost of one relaxed load.
//!
//! A forked child inherits references to shared memory blocks, but only the parent may release these blocks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static GENERATION: AtomicU64 = AtomicU64::new(0);
/// The code uses no lock, because another thread could hold the lock during a fork, and the child could never release
/// the lock.
static HOOKED: AtomicBool = AtomicBool::new(false);

/// The fork hook, which the C library calls in each forked child. A panic must not reach the C library.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
    super::inherited::wipe_what_is_the_parents();
}

/// Returns a number that differs between a process and its forked children.
#[inline]
pub fn generation() -> u64 {
    if !HOOKED.load(Relaxed) {
        // SAFETY: `in_child` only changes atomics and maps memory, and neither locks nor allocates memory.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        HOOKED.store(failed == 0, Relaxed);
    }
    GENERATION.load(Relaxed)
}
