//! Times as Python gives them, as the engine takes them.

use std::time::Duration;

/// The duration of so many seconds; the longest one if that is more than a `Duration` holds, none if it is negative or
/// no number.
pub fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(if seconds > 0.0 { Duration::MAX } else { Duration::ZERO })
}
