//! Converts times from Python.

use std::time::Duration;

/// Converts seconds to a duration: `Duration::MAX` if they exceed it, zero if they are negative or NaN.
pub fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(if seconds > 0.0 { Duration::MAX } else { Duration::ZERO })
}
