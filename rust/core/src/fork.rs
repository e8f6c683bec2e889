//! Telling a forked child from its parent, cheaply.
//!
//! A child inherits every lease and block of its parent; giving them back is the parent's business
//! alone. A counter that `fork` raises in the child costs one relaxed load to compare.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static HOOK: Once = Once::new();

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
}

/// Number of forks between the first process that asked and this one.
///
/// Two calls that return different numbers were made in different processes.
pub fn generation() -> u64 {
    HOOK.call_once(|| {
        // SAFETY: `in_child` only touches an atomic, which is allowed between fork and exec.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Relaxed)
}
