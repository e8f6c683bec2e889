//! Explores all interleavings of the protocol between the processes of small loaders.
//!
//! There must be no deadlock: from every state, the loader must be able to end. No item may be lost, duplicated,
//! delivered out of order, or delivered in another epoch. An epoch without an error must be complete, and the exit of a
//! process must cause an error.

mod carrying;
mod child;
mod explore;
mod lanes;
mod main_process;
mod memory;
mod restarting;
mod resumed;
mod resuming;
mod rules;
mod saving;
mod shards;
mod shared;
mod world;

use explore::{explore, holds};
use world::Setting;

fn setting(workers: usize, dispatches: bool, outputs: &'static [u8]) -> Setting {
    Setting {
        workers,
        dispatches,
        outputs,
        window: 1,
        dispatch_window: 1,
        ring: 2,
        epochs: 2,
        passes: 1,
        leavers: 3,
        in_order: true,
        look_back: 1,
        follows: true,
        ..Setting::default()
    }
}

fn happenings(setting: &Setting) -> Vec<(&'static str, Setting)> {
    let with = |change: &dyn Fn(&mut Setting)| {
        let mut setting = setting.clone();
        change(&mut setting);
        setting
    };
    let mut all = vec![
        ("nothing in particular", setting.clone()),
        ("a look into the share, breaks", with(&|s| (s.looks, s.breaks) = (s.dispatches, true))),
        ("an error", with(&|s| s.fails_at = Some(1))),
        ("an error, two passes", with(&|s| (s.fails_at, s.passes) = (Some(1), 2))),
        ("halts, calls meanwhile, resumes", with(&|s| s.pauses = true)),
        ("calls", with(&|s| s.calls = true)),
        ("an exit", with(&|s| s.exits = 1)),
        ("reading ahead, breaks", with(&|s| (s.reads_ahead, s.breaks) = (true, true))),
        ("two passes", with(&|s| s.passes = 2)),
        ("shares left early", with(&|s| s.header = Some(1))),
        ("shares left early, two passes", with(&|s| (s.header, s.passes) = (Some(1), 2))),
        ("large items, breaks", with(&|s| (s.heavy, s.breaks) = (true, true))),
        ("large items, halts, calls meanwhile, resumes", with(&|s| (s.heavy, s.pauses) = (true, true))),
        ("large items, shares left early, two passes", with(&|s| (s.heavy, s.header, s.passes) = (true, Some(1), 2))),
        ("large items, an exit", with(&|s| (s.heavy, s.exits) = (true, 1))),
        ("out of order, breaks", with(&|s| (s.in_order, s.breaks) = (false, true))),
    ];
    // If a window holds one item, `heavy` has no effect, so settings with `heavy` are omitted.
    all.retain(|(_, setting)| !setting.heavy || setting.window > 1 || setting.dispatch_window > 1);
    all
}

#[track_caller]
fn all_hold(setting: &Setting) {
    let name = format!(
        "{} workers{}, windows {} and {}, {:?}",
        setting.workers,
        if setting.dispatches { ", dispatching" } else { "" },
        setting.window,
        setting.dispatch_window,
        setting.outputs
    );
    for (what, setting) in happenings(setting) {
        holds(&format!("{name}: {what}"), &setting);
    }
}

#[test]
fn the_model_holds_for_one_worker() {
    for window in [1, 2] {
        for outputs in [&[2, 0, 1][..], &[0, 1, 1], &[1, 1]] {
            all_hold(&Setting { window, ..setting(1, false, outputs) });
            all_hold(&Setting { window, dispatch_window: window, ..setting(1, true, outputs) });
        }
    }
}

#[test]
fn workers_with_separate_sources() {
    for window in [1, 2] {
        for outputs in [&[2, 0, 1][..], &[0, 1, 1]] {
            all_hold(&Setting { window, ..setting(2, false, outputs) });
        }
        all_hold(&Setting { window, ..setting(3, false, &[0, 2]) });
    }
}

#[test]
fn two_workers_and_the_dispatching_process() {
    let wide = Setting { window: 2, dispatch_window: 2, ..setting(2, true, &[1, 1]) };
    for setting in
        [setting(2, true, &[2, 0, 1]), Setting { window: 2, dispatch_window: 1, ..setting(2, true, &[0, 2]) }, wide]
    {
        all_hold(&setting);
    }
    all_hold(&Setting { window: 1, dispatch_window: 2, ..setting(2, true, &[0, 2]) });
}

#[test]
fn three_workers_and_the_dispatching_process() {
    for (what, setting) in happenings(&setting(3, true, &[0, 2])) {
        // With three workers, exploring settings with exits or with `in_order=false` takes too long.
        if setting.exits == 0 && setting.in_order {
            holds(&format!("3 workers, dispatching: {what}"), &setting);
        }
    }
}

#[test]
#[ignore = "takes half an hour and some gigabytes: run `cargo test --release --test protocol -- --ignored --nocapture`"]
fn three_workers_and_the_dispatching_process_with_more_items() {
    all_hold(&setting(3, true, &[0, 2]));
    all_hold(&setting(3, true, &[2, 0, 1]));
    all_hold(&setting(3, true, &[0, 1, 1]));
    all_hold(&Setting { window: 2, dispatch_window: 2, ..setting(3, true, &[0, 2]) });
    all_hold(&Setting { window: 2, dispatch_window: 2, ..setting(2, true, &[1, 1]) });
}

#[test]
fn loaders_in_which_earlier_rules_lost_items_or_waited_forever() {
    let once = Setting { epochs: 1, ..setting(1, false, &[1, 1]) };
    for setting in [
        Setting { breaks: true, ..setting(2, true, &[2, 0, 1]) },
        setting(2, true, &[2, 0, 2, 0, 1, 1]),
        Setting { header: Some(1), leavers: 1, ..setting(2, true, &[1, 1, 1, 1, 1, 1]) },
        Setting { carried: true, dispatches: true, workers: 2, outputs: &[2, 0, 1, 0, 0, 1], ..once.clone() },
        Setting { carried: true, calls: true, ring: 1, window: 2, outputs: &[1, 1, 1], ..once },
    ] {
        explore(&setting).unwrap_or_else(|found| panic!("{setting:?}: {found}"));
    }
}
