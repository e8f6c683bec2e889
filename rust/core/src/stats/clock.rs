//! Reads the monotonic clock in nanoseconds. All processes of a machine share the monotonic clock.

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for writing, and the clock exists on every supported system.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the current time of the monotonic clock, which equals Python's `time.monotonic_ns()`.
#[inline]
pub fn nanoseconds() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the current time like `nanoseconds`, but much faster and with an error of some milliseconds.
#[inline]
pub fn coarse_nanoseconds() -> u64 {
    #[cfg(target_os = "linux")]
    return read(libc::CLOCK_MONOTONIC_COARSE);
    #[cfg(not(target_os = "linux"))]
    read(libc::CLOCK_MONOTONIC)
}
