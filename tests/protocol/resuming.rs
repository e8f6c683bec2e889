//! Explores all interleavings of loaders that take snapshots, resume epochs and replace children.
//!
//! The model checker tests every position where the user can save a state. The snapshots in a state must belong to the
//! current epoch, and must not contain items that the user has not received. The dispatching process's snapshot in a
//! state must not contain items that no worker has read yet. Recomputed items must equal the original items.

use super::explore::holds;
use super::setting;
use super::world::Setting;

fn saving(workers: usize, dispatches: bool, outputs: &'static [u8]) -> Setting {
    Setting { snapshots: 2, epochs: 1, ..setting(workers, dispatches, outputs) }
}

fn happenings(resumes: u8, saving: &Setting) -> Vec<(&'static str, Setting)> {
    let all = Setting { resumes, ..saving.clone() };
    vec![
        ("resumes", all.clone()),
        ("resumes, longer memory", Setting { look_back: 2, ..all.clone() }),
        ("resumes, breaks, two epochs", Setting { breaks: true, epochs: 2, resumes: 1, ..all.clone() }),
        ("resumes, an error", Setting { fails_at: Some(1), ..all.clone() }),
        ("resumes, halts", Setting { pauses: true, resumes: 1, ..all.clone() }),
        ("resumes, an exit", Setting { exits: 1, resumes: 1, ..all.clone() }),
        ("resumes, reading ahead", Setting { reads_ahead: true, resumes: 1, ..all.clone() }),
        ("resumes, ahead, lag unknown", Setting { reads_ahead: true, resumes: 1, follows: false, ..all.clone() }),
        ("resumes, two passes", Setting { passes: 2, resumes: 1, ..all }),
    ]
}

#[test]
fn one_worker_resumes_from_any_state() {
    for window in [1, 2] {
        for outputs in [&[2, 0, 1][..], &[1, 1]] {
            for (what, setting) in happenings(2, &Setting { window, ..saving(1, false, outputs) }) {
                holds(&format!("1 worker, window {window}, {outputs:?}: {what}"), &setting);
            }
        }
    }
}

#[test]
fn two_workers_resume_from_any_state() {
    let base = Setting { resumes: 1, snapshots: 1, ..saving(2, false, &[2, 0, 1]) };
    holds("2 workers", &base);
    holds("2 workers, window 2", &Setting { window: 2, ..base.clone() });
    holds("2 workers, reading ahead", &Setting { reads_ahead: true, ..saving(2, false, &[1, 1]) });
    holds("2 workers, out of order", &Setting { in_order: false, ..base.clone() });
    holds("2 workers, two epochs, breaks", &Setting { breaks: true, epochs: 2, resumes: 0, ..base });
}

#[test]
fn dispatched_items_resume_from_any_state() {
    let one = Setting { resumes: 1, ..saving(1, true, &[2, 1]) };
    holds("1 worker, dispatching", &one);
    holds("1 worker, dispatching, two passes", &Setting { passes: 2, snapshots: 1, ..one.clone() });
    holds(
        "1 worker, dispatching, a share left early",
        &Setting { header: Some(1), snapshots: 1, passes: 2, ..one.clone() },
    );
    holds("1 worker, dispatching, resumes twice", &Setting { resumes: 2, snapshots: 1, ..saving(1, true, &[2]) });
    holds("1 worker, dispatching, an error", &Setting { fails_at: Some(1), ..one.clone() });
    holds("1 worker, dispatching, a look into the share", &Setting { looks: true, passes: 2, snapshots: 1, ..one });
    let two = saving(2, true, &[1, 1]);
    holds("2 workers, dispatching, resumes", &Setting { resumes: 1, snapshots: 0, ..two.clone() });
    // A saved state contains a snapshot of the dispatching process only if `snapshots` is at least 2.
    holds("2 workers, dispatching, a look into the share", &Setting { looks: true, snapshots: 2, ..two.clone() });
    holds("2 workers, dispatching", &Setting { snapshots: 3, ..two });
}

#[test]
fn snapshots_of_one_epoch_are_not_used_in_another() {
    let one = Setting { breaks: true, epochs: 2, ..saving(1, true, &[1, 1]) };
    holds("1 worker, dispatching, breaks", &one);
    holds("1 worker, dispatching, resumes", &Setting { resumes: 1, snapshots: 1, ..one });
}

#[test]
fn workers_that_have_exited_are_replaced() {
    let one = Setting { restarts: true, exits: 3, ..saving(1, false, &[2, 1]) };
    holds("1 worker, replaced", &one);
    holds("1 worker, replaced, window 2, two epochs", &Setting { window: 2, breaks: true, epochs: 2, ..one.clone() });
    holds("1 worker, replaced, resumes", &Setting { resumes: 1, exits: 2, ..one.clone() });
    holds("1 worker, replaced, halts", &Setting { pauses: true, ..one.clone() });
    holds("1 worker, replaced, calls", &Setting { calls: true, ..one.clone() });
    holds("1 worker, replaced, calls, two epochs", &Setting { calls: true, epochs: 2, exits: 2, ..one.clone() });
    holds("1 worker, replaced, an error", &Setting { fails_at: Some(1), ..one });
    let two = Setting { restarts: true, exits: 2, snapshots: 1, ..saving(2, false, &[2, 0, 1]) };
    holds("2 workers, replaced", &two);
    holds("2 workers, replaced, reading ahead", &Setting { reads_ahead: true, exits: 1, ..two.clone() });
    holds("2 workers, replaced, out of order", &Setting { in_order: false, exits: 1, ..two });
}

#[test]
fn with_dispatching_all_children_are_replaced_together() {
    let one = Setting { restarts: true, exits: 2, snapshots: 1, ..saving(1, true, &[2, 1]) };
    holds("1 worker, dispatching, replaced", &one);
    let short = Setting { outputs: &[1], ..one.clone() };
    holds("1 worker, dispatching, replaced, calls", &Setting { calls: true, ..short });
    holds("1 worker, dispatching, replaced thrice", &Setting { snapshots: 0, exits: 3, ..one.clone() });
    holds("1 worker, dispatching, replaced, two passes", &Setting { passes: 2, exits: 1, ..one });
    let two = Setting { restarts: true, exits: 1, snapshots: 0, ..saving(2, true, &[1, 1]) };
    holds("2 workers, dispatching, replaced", &two);
    let free = Setting { in_order: false, outputs: &[2], ..two };
    holds("2 workers, dispatching, out of order, replaced", &free);
}

#[test]
#[ignore = "takes an hour and some gigabytes: run `cargo test --release --test protocol -- --ignored --nocapture`"]
fn larger_loaders_resume_and_are_replaced() {
    let two = saving(2, true, &[1, 1]);
    holds("2 workers, dispatching, breaks", &Setting { breaks: true, epochs: 2, snapshots: 1, ..two.clone() });
    holds("2 workers, dispatching, resumes", &Setting { resumes: 1, snapshots: 1, ..two.clone() });
    holds("2 workers, dispatching, resumes from all", &Setting { resumes: 1, snapshots: 3, ..two.clone() });
    holds("2 workers, dispatching, replaced", &Setting { restarts: true, exits: 1, snapshots: 1, ..two.clone() });
    let free = Setting { in_order: false, ..two.clone() };
    holds("2 workers, dispatching, replaced twice", &Setting { restarts: true, exits: 2, snapshots: 0, ..two });
    holds("2 workers, dispatching, out of order, resumes", &Setting { resumes: 1, snapshots: 1, ..free.clone() });
    holds(
        "2 workers, dispatching, out of order, replaced",
        &Setting { restarts: true, exits: 1, snapshots: 1, ..free },
    );
    let three = saving(3, false, &[1, 1, 1]);
    holds("3 workers, go on", &Setting { resumes: 1, snapshots: 1, ..three.clone() });
    holds("3 workers, replaced", &Setting { restarts: true, exits: 1, snapshots: 1, ..three });
    holds("1 worker, dispatching, resumes twice", &Setting { resumes: 2, ..saving(1, true, &[2, 1]) });
    holds("1 worker, dispatching, two passes", &Setting { resumes: 1, passes: 2, ..saving(1, true, &[1, 1]) });
}
