//! Replaces exited children within an epoch.
//!
//! Without a dispatching process, only the exited worker is replaced, with a new link. With a dispatching process, all
//! children are replaced together, because items in transit to the exited one are unknown to the others. Items that the
//! main process has received are drained first, and the replacements recompute the same number of items.

use torchdata_core::protocol::{Account, Command, Judgement, Period, TRIES};

use super::going_on::Place;
use super::main_process::plainly;
use super::memory::{Kind, Link, Unit};
use super::saving::{Ordered, Resumption, digest};
use super::world::{Doing, Kept, Main, Setting, World};

/// More items than an epoch has.
const ALL: u64 = 1 << 62;

impl Setting {
    /// Returns whether failing is too early, because a child can still be replaced.
    pub fn is_to_go_on(&self, world: &World) -> bool {
        self.restarts && self.fails_at.is_none() && usize::from(self.deaths - world.deaths) < TRIES
    }
}

/// The resumption of a child that repeats its epoch: the reader has all of its items.
fn repeated(start: &Resumption) -> Resumption {
    let starts = start.starts.iter().map(|&(sent, ..)| (sent, ALL, None)).collect();
    Resumption { starts, ..start.clone() }
}

impl World {
    /// Returns whether a child has exited that is still needed in this epoch.
    pub fn is_dead(&self) -> bool {
        (0..self.children.len()).any(|index| self.is_gone(index) && !self.rests(index))
    }

    pub fn rests(&self, index: usize) -> bool {
        self.kept.replacing.rests(index)
    }

    /// Records the function that will be sent next.
    pub fn note_call(&mut self, setting: &Setting) {
        self.called = 1;
        (0..setting.children()).for_each(|child| self.settle(child));
        self.kept.calls.note();
    }

    /// Begins an epoch: functions of earlier epochs were applied before it.
    pub fn begin_calls(&mut self, setting: &Setting) {
        (0..setting.children()).for_each(|child| self.settle(child));
        self.kept.calls.begin(false);
        self.kept
            .met
            .iter_mut()
            .zip(self.children.iter())
            .for_each(|(met, child)| *met = (child.applied > 0).then_some(0));
        if self.called > 0 {
            let Kept { replacing, met, .. } = &mut *self.kept;
            let resting = (0..setting.children()).filter(|&child| replacing.rests(child));
            resting.for_each(|child| met[child] = Some(0));
        }
        self.kept.had.fill(0);
    }

    /// Records the position of a child, according to the words that outlive it.
    fn settle(&mut self, child: usize) {
        let place = self.acknowledged(child);
        if let ([number], Some(place)) = (&self.kept.calls.unsettled(child)[..], place) {
            self.kept.calls.settle(*number, child, place);
        }
    }

    /// Returns whether replacing must wait, because the dispatching process is running and will apply the function
    /// next, at a position that is still unknown.
    pub fn awaits_dispatcher(&self, setting: &Setting) -> bool {
        let mut looked = self.clone();
        let index = setting.workers;
        setting.restarts && setting.dispatches && self.children[index].doing != Doing::Gone && {
            looked.settle(index);
            !looked.kept.calls.is_placed(index)
        }
    }

    /// Handles exited children: they are replaced, or are not needed again in this epoch. Returns false if this was
    /// tried too often.
    pub fn replace_dead(&mut self, setting: &Setting) -> bool {
        let dead = |world: &Self, index: usize| world.is_gone(index) && !world.rests(index);
        let dead: Vec<usize> = (0..setting.children()).filter(|&index| dead(self, index)).collect();
        self.drain(setting, dead.iter().copied());
        let ended: Vec<bool> = (0..setting.workers).map(|worker| self.has_ended(worker)).collect();
        let received: Vec<Account> = (0..setting.workers).map(|worker| self.received(setting, worker)).collect();
        let replaced = match setting.rules.together {
            true => self.kept.replacing.wanted(&dead, &ended),
            false => dead.clone(),
        };
        let halted = matches!(self.main, Main::Paused | Main::Calling(_, true));
        let items: Vec<u64> = received.iter().map(|account| account.items).collect();
        let died = u64::from(setting.deaths - self.deaths); // distinguishes successive processes of a child
        for index in dead {
            let judge = |this: &mut Self| this.kept.replacing.judge(index, died, this.number, &items, halted);
            if replaced.contains(&index) && judge(self).is_final() {
                return false;
            }
        }
        if replaced.is_empty() {
            return true;
        }
        if setting.dispatches {
            self.settle(setting.workers);
            if !self.kept.calls.is_placed(setting.workers) {
                return false;
            }
        }
        self.drain(setting, replaced.iter().copied()); // the others were killed for the replacement
        let ended: Vec<bool> = (0..setting.workers).map(|worker| self.has_ended(worker)).collect();
        let received: Vec<Account> = (0..setting.workers).map(|worker| self.received(setting, worker)).collect();
        for &worker in replaced.iter().filter(|&&child| child < setting.workers) {
            self.settle(worker);
            if setting.carried && !self.kept.calls.unsettled(worker).is_empty() {
                self.kept.met[worker] = None; // its acknowledgement was lost, together with all later items
            }
            self.kept.calls.settle_behind(worker, received[worker].items);
            self.kept.had[worker] = received[worker].items;
        }
        let place = Place::at(setting, &self.kept.books, received);
        let starts = place.resumptions(setting);
        if setting.dispatches {
            self.dealt.iter_mut().chain(self.elsewhere.dealing.iter_mut()).for_each(|link| *link = Link::new());
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
            self.kept.told |= 1 << index;
            let mut start = starts[index].clone();
            let (mut ahead, mut within) =
                (self.kept.calls.ahead(index, true, false), self.kept.calls.within(index, Period::Now));
            if !setting.rules.placing {
                ahead.extend(std::mem::take(&mut within).iter().map(|&(_, number)| number));
            }
            for number in ahead {
                let _ = self.tell(index, plainly(Command::Call(number))); // there is room
            }
            if !within.is_empty() {
                start.calls = within;
            }
            let mut command = Command::Epoch(self.number);
            if self.kept.replacing.repeats(index, &ended) {
                command = Command::Repeat(self.number);
                start = repeated(&start).into();
            }
            self.tell(index, Ordered { command, epoch: self.epoch, start: Some(start) });
        }
        true
    }

    /// Takes everything that some children had sent. Snapshots are kept at once.
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

    /// The account of items received from a worker, delivered or not.
    fn received(&self, setting: &Setting, worker: usize) -> Account {
        let mut account = self.kept.books.taken(worker);
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
