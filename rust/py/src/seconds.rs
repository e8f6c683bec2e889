//! Converts times in seconds from Python to durations.

use std::time::Duration;

/// The duration is at most `Duration::MAX`, and zero for a negative time or NaN.
pub fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(if seconds > 0.0 { Duration::MAX } else { Duration::ZERO })
}
