//! Telling a forked child from its parent, cheaply.
//!
//! A child inherits every lease and block of its parent; giving them back is the parent's business
//! alone. A counter that `fork` raises in the child costs one relaxed load to compare.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Whether some thread has registered the hook. No lock guards it, as one that another thread holds while this one
/// forks would be held in the child for ever; threads that are first at the same time all register, and a fork counts
/// as two.
static HOOKED: AtomicBool = AtomicBool::new(false);

/// Neither adding to an atomic nor a system call can panic, so nothing unwinds into the C library.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
    super::inherited::wipe_what_is_the_parents();
}

/// The number that `generation` gives, after a call of that in this process or one before it.
#[inline]
pub fn current() -> u64 {
    GENERATION.load(Relaxed)
}

/// Number of forks between the first process that asked and this one.
///
/// Two calls that return different numbers were made in different processes.
pub fn generation() -> u64 {
    if !HOOKED.load(Relaxed) {
        // Marked only afterwards, so that every number that is given out was counted from then on.
        // SAFETY: `in_child` touches atomics and maps memory, with no lock and no allocation, which may be done in any
        // child.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        HOOKED.store(failed == 0, Relaxed);
    }
    GENERATION.load(Relaxed)
}
