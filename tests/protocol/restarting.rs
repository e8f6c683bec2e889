//! Replacing dead children inside an epoch.
//!
//! Without dispatching the dead worker alone is replaced, over a new link. With dispatching all children are, together: nobody
//! else knows what was on its way to the dead one. What main has received is drained first, and made again by count.

use std::sync::Arc;

use torchdata_core::protocol::{Account, Command, Judgement};

use super::going_on::Place;
use super::main_process::{plainly, tell};
use super::memory::{Kind, Link, Unit};
use super::saving::{Ordered, digest};
use super::world::{Child, Doing, Setting, World};

/// So many deaths without an item between them are an error.
const TRIES: u8 = 3;

impl Setting {
    /// Whether a failure is one too early: somebody can be replaced still.
    pub fn is_to_go_on(&self, world: &World) -> bool {
        self.restarts && self.fails_at.is_none() && self.deaths - world.deaths < TRIES
    }
}

impl World {
    /// Whether somebody has died who is still wanted in this epoch.
    pub fn is_dead(&self) -> bool {
        self.children.iter().enumerate().any(|(index, child)| child.doing == Doing::Gone && !self.rests(index))
    }

    pub fn rests(&self, index: usize) -> bool {
        self.resting >> index & 1 == 1
    }

    /// Sees to those who have died: others take their places, or they are wanted no more in this epoch. False where that was tried
    /// too often.
    pub fn replace_dead(&mut self, setting: &Setting) -> bool {
        let dead = |world: &Self, index: usize| world.children[index].doing == Doing::Gone && !world.rests(index);
        let dead: Vec<usize> = (0..setting.children()).filter(|&index| dead(self, index)).collect();
        self.drain(setting, dead.iter().copied());
        let ended: Vec<bool> = (0..setting.workers).map(|worker| self.has_ended(worker)).collect();
        let received: Vec<Account> = (0..setting.workers).map(|worker| self.received(setting, worker)).collect();
        let replaced: Vec<usize> = match setting.dispatches && setting.rules.together {
            true if ended.iter().all(|&ended| ended) => Vec::new(),
            true => (0..setting.children()).collect(),
            false => dead.iter().copied().filter(|&index| setting.is_dispatcher(index) || !ended[index]).collect(),
        };
        for index in dead {
            if !replaced.contains(&index) {
                self.resting |= 1 << index;
            } else if !self.is_worth_trying(index, received.get(index).map_or(0, |account| account.items)) {
                return false;
            }
        }
        if replaced.is_empty() {
            return true;
        }
        self.drain(setting, replaced.iter().copied()); // the others were ended for it
        let received = (0..setting.workers).map(|worker| self.received(setting, worker)).collect();
        let place = Place::at(setting, &self.books, received);
        let starts = place.resumptions(setting);
        if setting.dispatches {
            self.dealt.iter_mut().for_each(|link| *link = Link::new());
        }
        for index in replaced {
            let is_worker = !setting.is_dispatcher(index);
            self.children[index] = Child::new(if is_worker { 1 } else { setting.workers });
            if is_worker {
                let window = self.ends[index].receiving.window();
                let stream = self.ends[index].receiving.stream();
                self.out[index] = Link::new();
                self.ends[index].begin(&mut self.out[index], stream, window);
            }
            self.told |= 1 << index;
            if self.called > 0 {
                tell(&mut self.children[index], plainly(Command::Call)); // what was applied to the others
            }
            let start = Some(Arc::clone(&starts[index]));
            tell(&mut self.children[index], Ordered { command: Command::Epoch(self.number), epoch: self.epoch, start });
        }
        true
    }

    /// Notes a death; whether another process is to take the place, as something was received since the last ones.
    fn is_worth_trying(&mut self, who: usize, received: u64) -> bool {
        let (number, before, tries) = &mut self.tries[who];
        if (*number, *before) != (self.number, received) {
            (*number, *before, *tries) = (self.number, received, 0);
        }
        *tries += 1;
        *tries < TRIES
    }

    /// Takes in what some children had sent. Snapshots go into the books at once.
    fn drain(&mut self, setting: &Setting, children: impl Iterator<Item = usize>) {
        for worker in children.filter(|&child| child < setting.workers) {
            let link = std::mem::replace(&mut self.out[worker], Link::new());
            for unit in link.units {
                match self.ends[worker].receiving.judge(unit.stream) {
                    Judgement::Take => self.held[worker].push_back(unit),
                    Judgement::Drop => {}
                    Judgement::Leave => self.broken = Some("a child is ahead of main"),
                }
            }
            for unit in std::mem::take(&mut self.held[worker]) {
                match unit.kind {
                    Kind::Saved(_) | Kind::Dealt(_) => self.keep(setting, worker, &unit.kind),
                    _ => self.held[worker].push_back(unit),
                }
            }
        }
    }

    /// What was received of a worker, delivered or not.
    fn received(&self, setting: &Setting, worker: usize) -> Account {
        let mut account = self.books.taken(worker);
        if setting.rules.receiving {
            let items = self.held[worker].iter().filter_map(Unit::item);
            items.for_each(|item| account.count(digest(item)));
        }
        account
    }

    fn has_ended(&self, worker: usize) -> bool {
        let is_last = |unit: &Unit| matches!(unit.kind, Kind::End | Kind::Error);
        self.collecting.is_ended(worker) || self.held[worker].iter().any(is_last)
    }
}
