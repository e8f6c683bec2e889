//! Models workers on other machines. Each machine has its own copy of a link, and two carriers keep the copies equal.
//!
//! A carrier sends frames. A frame contains the header fields of the link and all messages that are in the link at
//! that moment. A carrier writes received header fields to its copy of the link immediately, even if the copy is full.
//! The main process may detect the exit of a worker before the worker's last frames arrive.

use std::collections::VecDeque;

use torchdata_core::protocol::Grant;

use super::explore::holds;
use super::memory::{Link, Unit};
use super::saving::Ordered;
use super::shared::Shared;
use super::world::{Act, CONTROL, Child, Doing, Main, Setting, Take, World};

pub const UNDER_WAY: usize = 2;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Up {
    units: VecDeque<Unit>,
    words: Last,
}

/// The header fields `acknowledged` and `starving` of a worker's link, which the worker writes.
type Last = (bool, u32);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Down {
    commands: VecDeque<Ordered>,
    words: (u64, u64, u32),
}

#[derive(Debug, Clone, Hash)]
pub struct Carrier {
    commands: VecDeque<Ordered>,
    order: u64,
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    /// Messages that wait for space in the main process's link.
    arrived: VecDeque<Unit>,
    /// Commands that wait for space in the worker's link.
    to_send: VecDeque<Ordered>,
    /// The last values of the header fields `order`, `grant` and `count` that were sent to the worker.
    sent: (u64, u64, u32),
    last: Last,
    acknowledged: bool,
    is_cut: bool,
}

impl Carrier {
    pub fn new() -> Self {
        Self {
            commands: VecDeque::new(),
            order: 0,
            up: VecDeque::new(),
            down: VecDeque::new(),
            arrived: VecDeque::new(),
            to_send: VecDeque::new(),
            sent: (0, Grant::NONE, 0),
            last: (false, 0),
            acknowledged: false,
            is_cut: false,
        }
    }
}

impl Setting {
    pub fn carrier_steps(&self, world: &World, index: usize, take: &mut Take<'_>) {
        let Some(carrier) = world.elsewhere.carriers.get(index) else { return };
        if world.main == Main::Exited {
            return;
        }
        let mut push = |name, after: World| take(Act::Carrier(index, name), Ok(after));
        let (child, far, near) = (&world.children[index], &world.elsewhere.far[index], &world.out[index]);
        let words = (child.acknowledged, far.starving);
        if !carrier.is_cut && carrier.up.len() < UNDER_WAY && (!far.units.is_empty() || words != carrier.last) {
            let mut after = world.clone();
            let units = std::mem::take(&mut after.elsewhere.far[index].units);
            let carrier = &mut after.elsewhere.carriers[index];
            carrier.last = words;
            carrier.up.push_back(Up { units, words });
            push("sends what the worker has made", after);
        }
        if !carrier.is_cut && carrier.up.len() < UNDER_WAY && !far.units.is_empty() && words != carrier.last {
            let mut after = world.clone();
            let carrier = &mut after.elsewhere.carriers[index];
            carrier.last = words;
            carrier.up.push_back(Up { units: VecDeque::new(), words });
            push("sends words, and leaves units", after);
        }
        if !carrier.up.is_empty() {
            let mut after = world.clone();
            let carrier = &mut after.elsewhere.carriers[index];
            let frame = carrier.up.pop_front().expect("a frame was sent");
            carrier.arrived.extend(frame.units);
            carrier.acknowledged = frame.words.0;
            after.out[index].starving = frame.words.1;
            push("brings a frame", after);
        }
        if !carrier.arrived.is_empty() && near.units.len() < self.ring {
            let mut after = world.clone();
            let (carrier, near) = (&mut after.elsewhere.carriers[index], &mut after.out[index]);
            while near.units.len() < self.ring
                && let Some(unit) = carrier.arrived.pop_front()
            {
                near.units.push_back(unit);
            }
            push("puts units into main's ring", after);
        }
        let words = (carrier.order, near.grant, near.count);
        if carrier.down.len() < UNDER_WAY && (!carrier.commands.is_empty() || words != carrier.sent) {
            let mut after = world.clone();
            let carrier = &mut after.elsewhere.carriers[index];
            carrier.sent = words;
            let commands = std::mem::take(&mut carrier.commands);
            carrier.down.push_back(Down { commands, words });
            push("sends what main has sent", after);
        }
        if !carrier.down.is_empty() {
            let mut after = world.clone();
            let carrier = &mut after.elsewhere.carriers[index];
            let frame = carrier.down.pop_front().expect("a frame was sent");
            carrier.to_send.extend(frame.commands);
            let (child, far) = (&mut after.children[index], &mut after.elsewhere.far[index]);
            (child.order, far.grant, far.count) = frame.words;
            push("shows the worker words", after);
        }
        if !carrier.to_send.is_empty() && child.doing != Doing::Exited && child.control.len() < CONTROL {
            let mut after = world.clone();
            let (carrier, child) = (&mut after.elsewhere.carriers[index], &mut after.children[index]);
            while child.control.len() < CONTROL
                && let Some(command) = carrier.to_send.pop_front()
            {
                child.control.push_back(command);
            }
            push("tells the worker", after);
        }
        if world.exits > 0 && child.doing != Doing::Exited {
            let mut after = world.clone();
            after.exits -= 1;
            after.children[index].doing = Doing::Exited;
            after.elsewhere.carriers[index].is_cut = true;
            take(Act::HostExits(index), Ok(after));
        }
    }

    pub fn fresh_carriers<const MOST: usize>(&self) -> Shared<Carrier, MOST> {
        (0..if self.carried { self.workers } else { 0 }).map(|_| Carrier::new()).collect()
    }
}

impl World {
    pub fn send_order(&mut self, index: usize, ordered: Ordered) -> bool {
        let Self { children, elsewhere, .. } = self;
        let child = &mut children[index];
        let has_exited = child.doing == Doing::Exited;
        let Child { control, order, .. } = child;
        let (control, order) = match elsewhere.carriers.get(index).is_some() {
            true => {
                let Carrier { commands, order, .. } = &mut elsewhere.carriers[index];
                (commands, order)
            }
            false => (control, order),
        };
        if control.len() == CONTROL || has_exited {
            return has_exited;
        }
        *order = ordered.command.order().unwrap_or(*order);
        control.push_back(ordered);
        true
    }

    pub fn acknowledged(&self, index: usize) -> bool {
        self.elsewhere.carriers.get(index).map_or(self.children[index].acknowledged, |carrier| carrier.acknowledged)
    }

    /// Returns whether a child has exited in a way that the main process can detect.
    pub fn has_exited(&self, index: usize) -> bool {
        let child = &self.children[index];
        let all_arrived = |carrier: &Carrier| {
            carrier.up.is_empty() && self.elsewhere.far[index].units.is_empty() && child.acknowledged == carrier.last.0
        };
        let sees = |carrier: &Carrier| carrier.is_cut || all_arrived(carrier);
        child.doing == Doing::Exited && self.elsewhere.carriers.get(index).is_none_or(sees)
    }

    pub fn renew_carrier(&mut self, setting: &Setting, index: usize) {
        if setting.carried {
            self.elsewhere.carriers[index] = Carrier::new();
            self.elsewhere.far[index] = Link::new();
            self.renew_lane(setting, index);
        }
    }
}

fn carried(workers: usize, outputs: &'static [u8]) -> Setting {
    Setting { carried: true, ..super::setting(workers, false, outputs) }
}

#[test]
fn the_model_holds_for_one_worker_on_another_machine() {
    for (window, outputs) in [(1, &[2, 0, 1][..]), (2, &[1, 1])] {
        super::all_hold(&Setting { window, ..carried(1, outputs) });
    }
}

#[test]
fn the_model_holds_for_two_workers_on_other_machines() {
    super::all_hold(&Setting { epochs: 1, ..carried(2, &[1, 1]) });
}

#[test]
fn a_worker_on_another_machine_is_resumed_and_replaced() {
    let one = Setting { epochs: 1, snapshots: 2, ..carried(1, &[1, 1]) };
    holds("resumes", &Setting { resumes: 1, ..one.clone() });
    let replaced = Setting { restarts: true, exits: 2, ..one };
    holds("replaced", &replaced);
    holds("replaced, calls", &Setting { calls: true, snapshots: 1, ..replaced.clone() });
    holds("replaced, halts", &Setting { pauses: true, exits: 1, ..replaced.clone() });
    holds("replaced, two epochs, breaks", &Setting { epochs: 2, breaks: true, exits: 1, snapshots: 1, ..replaced });
}

#[test]
#[ignore = "takes ten minutes: run it by hand, as shown in main.rs"]
fn a_worker_on_another_machine_is_resumed_twice_and_called_between_snapshots() {
    let one = Setting { epochs: 1, snapshots: 2, ..carried(1, &[1, 1]) };
    holds("resumes twice", &Setting { resumes: 2, ..one.clone() });
    holds("resumes, breaks", &Setting { resumes: 1, breaks: true, epochs: 2, ..one.clone() });
    holds("replaced, calls", &Setting { restarts: true, exits: 2, calls: true, ..one });
}
