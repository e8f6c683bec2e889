//! Models how items are dispatched to workers on other machines. A `Lane` is the connection to one worker. A lane
//! carries items to the worker, and permissions (`Grant`) back to the dispatching process.
//!
//! A `Lane` sends no items after the worker has exited, or while earlier items wait for space in the worker's ring.

use std::collections::VecDeque;

use torchdata_core::protocol::Grant;

use super::carrying::UNDER_WAY;
use super::explore::holds;
use super::memory::Unit;
use super::shared::Shared;
use super::world::{Act, Doing, Main, Setting, Take, World};

#[derive(Debug, Clone, Hash)]
pub struct Lane {
    down: VecDeque<VecDeque<Unit>>,
    /// Messages from the worker to the dispatching process: a `Grant`, and the number of items that the grant permits.
    up: VecDeque<(u64, u32)>,
    arrived: VecDeque<Unit>,
    last: (u64, u32),
}

impl Lane {
    fn new() -> Self {
        Self { down: VecDeque::new(), up: VecDeque::new(), arrived: VecDeque::new(), last: (Grant::NONE, 0) }
    }
}

impl Setting {
    pub fn lane_steps(&self, world: &World, index: usize, take: &mut Take<'_>) {
        let Some(lane) = world.elsewhere.lanes.get(index) else { return };
        if world.main == Main::Exited || world.children[index].doing == Doing::Exited {
            return;
        }
        let mut push = |name, after: World| take(Act::Carrier(index, name), Ok(after));
        let (near, there) = (&world.elsewhere.dispatch[index], &world.dispatched[index]);
        if lane.down.len() < UNDER_WAY && lane.arrived.is_empty() && !near.units.is_empty() {
            let mut after = world.clone();
            let units = std::mem::take(&mut after.elsewhere.dispatch[index].units);
            after.elsewhere.lanes[index].down.push_back(units);
            push("sends what is dispatched", after);
        }
        if lane.arrived.is_empty() && !lane.down.is_empty() {
            let mut after = world.clone();
            let lane = &mut after.elsewhere.lanes[index];
            lane.arrived = lane.down.pop_front().expect("a message was sent");
            push("brings what is dispatched", after);
        }
        if !lane.arrived.is_empty() && there.units.len() < self.ring {
            let mut after = world.clone();
            let (lane, there) = (&mut after.elsewhere.lanes[index], &mut after.dispatched[index]);
            while there.units.len() < self.ring
                && let Some(unit) = lane.arrived.pop_front()
            {
                there.units.push_back(unit);
            }
            push("puts units into the worker's ring", after);
        }
        let grant = (there.grant, there.count);
        if lane.up.len() < UNDER_WAY && grant != lane.last {
            let mut after = world.clone();
            let lane = &mut after.elsewhere.lanes[index];
            lane.last = grant;
            lane.up.push_back(grant);
            push("sends a grant", after);
        }
        if !lane.up.is_empty() {
            let mut after = world.clone();
            let grant = after.elsewhere.lanes[index].up.pop_front().expect("a grant was sent");
            let near = &mut after.elsewhere.dispatch[index];
            (near.grant, near.count) = grant;
            push("shows the dispatching process a grant", after);
        }
    }

    pub fn fresh_lanes<const MOST: usize>(&self) -> Shared<Lane, MOST> {
        (0..if self.carried && self.dispatches { self.workers } else { 0 }).map(|_| Lane::new()).collect()
    }
}

impl World {
    pub fn renew_lane(&mut self, setting: &Setting, index: usize) {
        if setting.dispatches {
            self.elsewhere.lanes[index] = Lane::new();
        }
    }
}

fn dispatched(workers: usize, outputs: &'static [u8]) -> Setting {
    Setting { carried: true, epochs: 1, ..super::setting(workers, true, outputs) }
}

#[test]
fn items_are_dispatched_to_a_worker_on_another_machine() {
    super::all_hold(&dispatched(1, &[2, 0, 1]));
}

#[test]
fn items_are_dispatched_to_two_workers_on_other_machines() {
    holds("beside another one", &dispatched(2, &[1, 1]));
}

#[test]
fn a_worker_on_another_machine_that_reads_dispatched_items_is_replaced() {
    let replaced = Setting { restarts: true, exits: 1, snapshots: 1, ..dispatched(1, &[1]) };
    holds("replaced", &replaced);
}

#[test]
#[ignore = "takes four minutes: run it by hand, as shown in main.rs"]
fn items_are_dispatched_to_a_worker_on_another_machine_for_all_events() {
    let one = Setting { snapshots: 1, ..dispatched(1, &[1]) };
    let replaced = Setting { restarts: true, exits: 1, ..one.clone() };
    holds("resumes", &Setting { resumes: 1, ..one });
    holds("replaced, two items", &Setting { restarts: true, exits: 1, snapshots: 1, ..dispatched(1, &[1, 1]) });
    holds("replaced, calls", &Setting { calls: true, ..replaced });
}
