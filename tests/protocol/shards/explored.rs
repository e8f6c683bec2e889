//! Explores all interleavings of loaders that have more shards than workers.

use super::Shards;
use crate::explore::{explore, holds};

fn shards(workers: usize, items: &'static [u8]) -> Shards {
    let shards = items.len() / workers;
    let plain = Shards { workers, shards, items, window: 1, ring: 2, epochs: 1, ..Shards::default() };
    Shards { in_order: true, keeps: true, counts: true, ..plain }
}

fn all_hold(setting: &Shards) {
    for window in [1, 2] {
        let setting = Shards { window, ..setting.clone() };
        holds("leaves epochs", &Shards { epochs: 2, breaks: true, ..setting.clone() });
        holds("leaves epochs, an exit", &Shards { epochs: 2, breaks: true, exits: 1, ..setting.clone() });
        holds("deaths, snapshots", &Shards { exits: 1, snapshots: 2, ..setting.clone() });
        holds("resumes from a state", &Shards { resumes: 1, snapshots: 1, ..setting.clone() });
        holds("resumes, an exit", &Shards { resumes: 1, exits: 1, snapshots: 1, ..setting.clone() });
        let snapshots = u8::from(setting.workers == 1);
        holds("out of order, an exit", &Shards { in_order: false, exits: 1, snapshots, ..setting });
    }
}

#[test]
fn two_shards_of_one_worker_share_a_link() {
    for items in [&[2, 2][..], &[3, 1], &[1, 3], &[0, 2]] {
        all_hold(&shards(1, items));
        holds("two deaths", &Shards { exits: 2, snapshots: 1, ..shards(1, items) });
    }
}

#[test]
fn two_workers_with_two_shards_each_share_two_links() {
    let uneven = shards(2, &[2, 1, 1, 1]);
    holds("leaves epochs, an exit", &Shards { epochs: 2, breaks: true, exits: 1, ..uneven.clone() });
    holds("deaths, snapshots", &Shards { exits: 1, snapshots: 2, ..uneven.clone() });
    holds("resumes, an exit", &Shards { resumes: 1, exits: 1, snapshots: 1, ..uneven });
    all_hold(&shards(2, &[1, 0, 2, 1]));
}

#[test]
fn the_checker_finds_a_main_process_that_delivers_the_unit_of_another_shard() {
    let setting = Shards { exits: 1, ..shards(1, &[2, 2]) };
    holds("kept", &setting);
    let found = explore(&Shards { keeps: false, ..setting }).expect_err("units of other shards come first");
    assert!(found.contains("of peer 0 is delivered as number 1, of peer 1"), "{found}");
}

#[test]
fn the_checker_finds_kept_items_that_use_up_the_window() {
    let setting = Shards { exits: 1, ..shards(1, &[2, 2]) };
    let found = explore(&Shards { counts: false, ..setting }).expect_err("the window is that of all shards");
    assert!(found.contains("all processes wait"), "{found}");
}
