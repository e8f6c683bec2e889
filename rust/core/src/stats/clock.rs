//! Reads the monotonic clock, which all processes of a machine share, in nanoseconds.

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every supported system, and `now` is a local variable.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the current time of this clock, which equals Python's `time.monotonic_ns()`.
#[inline]
pub fn nanoseconds() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns the current time much faster than `nanoseconds`, but with an error of some milliseconds.
#[inline]
pub fn coarse_nanoseconds() -> u64 {
    #[cfg(target_os = "linux")]
    return read(libc::CLOCK_MONOTONIC_COARSE);
    #[cfg(not(target_os = "linux"))]
    read(libc::CLOCK_MONOTONIC)
}
