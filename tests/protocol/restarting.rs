//! Models how children that have exited are replaced during an epoch.
//!
//! In a loader without a dispatching process, only the exited worker is replaced, and its replacement gets a new link.
//! If there is a dispatching process, all children are replaced, because it is unknown which dispatched items were
//! lost. Before new children start, the main process reads all messages of the old children. The new children
//! recompute the items since the last snapshot.

use torchdata_core::protocol::{Account, Command, Judgement, TRIES};

use super::memory::{Kind, Link, Unit};
use super::resumed::SavedPosition;
use super::saving::{Ordered, Resumption, digest};
use super::world::{Main, Setting, World};

const ALL: u64 = 1 << 62;

impl Setting {
    pub fn must_resume(&self, world: &World) -> bool {
        self.restarts && world.called == 0 && self.fails_at.is_none() && usize::from(self.exits - world.exits) < TRIES
    }
}

/// Returns the data that a new child needs to repeat the epoch.
fn repeated(start: &Resumption) -> Resumption {
    let starts = start.starts.iter().map(|&(sent, ..)| (sent, ALL, None)).collect();
    Resumption { starts, ..start.clone() }
}

impl World {
    pub fn is_any_exited(&self) -> bool {
        (0..self.children.len()).any(|index| self.has_exited(index) && !self.rests(index))
    }

    pub fn rests(&self, index: usize) -> bool {
        self.kept.replacing.rests(index)
    }

    pub fn replace_processes(&mut self, setting: &Setting) -> bool {
        let exited = |world: &Self, index: usize| world.has_exited(index) && !world.rests(index);
        let exited: Vec<usize> = (0..setting.children()).filter(|&index| exited(self, index)).collect();
        self.drain(setting, exited.iter().copied());
        let ended: Vec<bool> = (0..setting.workers).map(|worker| self.has_ended(worker)).collect();
        let received: Vec<Account> = (0..setting.workers).map(|worker| self.received(worker)).collect();
        let replaced = self.kept.replacing.wanted(&exited, &ended);
        let halted = matches!(self.main, Main::Paused | Main::Calling(_, true));
        let items: Vec<u64> = received.iter().map(|account| account.items).collect();
        let incarnation = u64::from(setting.exits - self.exits); // numbers the successive processes of a child
        for index in exited {
            let judge = |this: &mut Self| this.kept.replacing.judge(index, incarnation, this.number, &items, halted);
            if replaced.contains(&index) && judge(self).is_final() {
                return false;
            }
        }
        if replaced.is_empty() {
            return true;
        }
        if self.called > 0 {
            return false; // the graph of a replacement would lack the applied function
        }
        self.drain(setting, replaced.iter().copied()); // the killed children may have sent messages
        let ended: Vec<bool> = (0..setting.workers).map(|worker| self.has_ended(worker)).collect();
        let received: Vec<Account> = (0..setting.workers).map(|worker| self.received(worker)).collect();
        for &worker in replaced.iter().filter(|&&child| child < setting.workers) {
            self.kept.had[worker] = received[worker].items;
        }
        let position = SavedPosition::at(setting, &self.kept.books, received);
        let starts = position.resumptions(setting);
        if setting.dispatches {
            self.dispatched.iter_mut().chain(self.elsewhere.dispatch.iter_mut()).for_each(|link| *link = Link::new());
        }
        for index in replaced {
            let is_worker = !setting.is_dispatcher(index);
            self.children[index] = setting.fresh_child(index);
            if is_worker {
                let window = self.ends[index].receiving.window();
                let stream = self.ends[index].receiving.stream();
                self.out[index] = Link::new();
                self.renew_carrier(setting, index);
                self.ends[index].begin(&mut self.out[index], stream, window);
            }
            self.kept.announced |= 1 << index;
            let mut start = starts[index].clone();
            let mut command = Command::Epoch(self.number);
            if self.kept.replacing.repeats(index, &ended) {
                command = Command::Repeat(self.number);
                start = repeated(&start).into();
            }
            self.send_order(index, Ordered { command, epoch: self.epoch, start: Some(start) });
        }
        true
    }

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
                    Kind::Saved(_) | Kind::Dispatched(_) => self.keep(setting, worker, &unit.kind),
                    _ => self.held[worker].push_back(unit),
                }
            }
        }
    }

    /// Returns the number and checksum of a worker's received items.
    fn received(&self, worker: usize) -> Account {
        let mut account = self.kept.books.taken(worker);
        self.held[worker].iter().filter_map(Unit::item).for_each(|item| account.count(digest(item)));
        account
    }

    fn has_ended(&self, worker: usize) -> bool {
        let is_last = |unit: &Unit| matches!(unit.kind, Kind::End | Kind::Error);
        self.collecting.turn.is_ended(worker) || self.held[worker].iter().any(is_last)
    }
}
