//! Converts times in seconds to durations.

use std::time::Duration;

/// Returns a duration of at most `Duration::MAX`. A negative time or NaN becomes a duration of zero.
pub fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(if seconds > 0.0 { Duration::MAX } else { Duration::ZERO })
}
