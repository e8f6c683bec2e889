//! Tests that seeds stay the same in all releases.

#![cfg(not(loom))]

use torchdata_core::seed::SeedGenerator;

/// Different seeds would change the order of every seeded pipeline.
#[test]
fn known_seeds_do_not_change() {
    let mut seeds = SeedGenerator::new(42);
    assert_eq!(seeds.generate_shared_seed(), 6870544660090538354);
    assert_eq!(seeds.generate_seed(), 6870544660090538354, "not spawned: the shared seeds");
    let mut child = seeds.spawn(3);
    assert_eq!(child.generate_shared_seed(), 1456767826909357026);
    assert_eq!(child.generate_seed(), 2428305741014958126);
    assert_eq!(child.spawn(1).generate_seed(), 3730109500009162398);
}

#[test]
fn a_child_depends_on_the_position_of_its_parent() {
    let mut parent = SeedGenerator::new(5);
    let mut early = parent.spawn(0);
    parent.generate_seed();
    assert_ne!(early.generate_seed(), parent.spawn(0).generate_seed());
}
