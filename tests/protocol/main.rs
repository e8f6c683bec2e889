//! The protocol between main, workers and the dispatching process, in every interleaving of small loaders.
//!
//! Checked in each: no deadlock; from every state an end can be reached; no item is lost, doubled or delivered to another epoch
//! or out of order; an epoch that ends without error is complete; a death is an error. And the checker itself is checked: with
//! the rules as they were before a defect was mended, it must find that defect.

mod explore;
mod world;

use explore::explore;
use world::{PRESENT, Rules, Setting};

fn setting(workers: usize, dispatches: bool, outputs: &'static [u8]) -> Setting {
    Setting {
        rules: PRESENT,
        workers,
        dispatches,
        outputs,
        window: 1,
        dispatch_window: 1,
        ring: 2,
        epochs: 2,
        passes: 1,
        header: None,
        in_order: true,
        breaks: false,
        pauses: false,
        calls: false,
        deaths: false,
        reads_ahead: false,
        fails_at: None,
    }
}

#[track_caller]
fn holds(name: &str, setting: &Setting) {
    let began = std::time::Instant::now();
    match explore(setting) {
        Ok(explored) => println!("{name}: {explored}, in {:.1} s", began.elapsed().as_secs_f64()),
        Err(found) => panic!("{name}: {found}"),
    }
}

#[test]
fn sketch() {
    for dispatches in [false, true] {
        for workers in 1..=3 {
            let s = setting(workers, dispatches, &[2, 0, 1]);
            holds(&format!("plain {workers} {dispatches}"), &s);
            for o in [&[2, 0, 1][..], &[0, 1, 1], &[1, 1], &[0, 2]] {
                let s = Setting { outputs: o, ..s.clone() };
                println!("{o:?}");
                holds(&format!("breaks {workers} {dispatches}"), &Setting { breaks: true, ..s.clone() });
                holds(&format!("pauses {workers} {dispatches}"), &Setting { pauses: true, ..s.clone() });
                holds(&format!("calls {workers} {dispatches}"), &Setting { calls: true, ..s.clone() });
                holds(&format!("deaths {workers} {dispatches}"), &Setting { deaths: true, ..s.clone() });
                holds(
                    &format!("ahead {workers} {dispatches}"),
                    &Setting { reads_ahead: true, breaks: true, ..s.clone() },
                );
                holds(&format!("passes {workers} {dispatches}"), &Setting { passes: 2, ..s.clone() });
                holds(&format!("header {workers} {dispatches}"), &Setting { header: Some(1), ..s.clone() });
                holds(&format!("fails {workers} {dispatches}"), &Setting { fails_at: Some(1), ..s.clone() });
                holds(&format!("out of order {workers} {dispatches}"), &Setting { in_order: false, ..s.clone() });
            }
        }
    }
    let _ = Rules { streams: false, ..PRESENT };
}
