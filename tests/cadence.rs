//! Tests `Cadence`, which decides when a child process takes its next snapshot.

#![cfg(not(loom))]

use std::time::{Duration, Instant};

use torchdata_core::cadence::Cadence;

fn pauses(factor: f64, took: &[u64]) -> Vec<u128> {
    let mut cadence = Cadence::new(Duration::from_millis(10), factor);
    let pause = |&micros: &u64| {
        let began = Instant::now();
        cadence.made(Some(began), began + Duration::from_micros(micros)).as_micros()
    };
    took.iter().map(pause).collect()
}

#[test]
fn a_pause_is_a_multiple_of_the_shortest_of_the_last_three_snapshots() {
    assert_eq!(pauses(100.0, &[2000, 1000, 200, 900, 800, 700])[2..], [20_000, 20_000, 20_000, 70_000]);
    assert_eq!(pauses(100.0, &[20_000; 3])[2], 100 * (1000 + 5 * 19_000), "time beyond 1 ms counts five times");
}

#[test]
fn the_first_two_pauses_are_short_and_no_pause_is_shorter_than_the_minimum() {
    assert_eq!(pauses(100.0, &[20_000, 9000, 200, 20]), [40_000, 18_000, 20_000, 10_000]);
    assert_eq!(pauses(0.0, &[1_000_000; 3]), [10_000; 3]);
}

#[test]
fn a_process_that_sleeps_shortens_a_pause_by_half_but_not_below_the_minimum() {
    for (took, passed, is_due) in [(60, 20, false), (60, 40, true), (1, 5, false), (1, 15, true), (60, 99, true)] {
        let mut cadence = Cadence::new(Duration::from_millis(10), 1000.0);
        let began = Instant::now() - Duration::from_millis(passed) - Duration::from_micros(took);
        (0..3).for_each(|_| _ = cadence.made(Some(began), began + Duration::from_micros(took)));
        assert_eq!(cadence.is_due_early(), is_due, "{took} {passed}");
        cadence.made(None, Instant::now());
        assert!(!cadence.is_due_early(), "a thread was busy");
    }
}
