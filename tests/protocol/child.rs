//! The children: pumps, graphs, shares, commands.

use torchdata_core::protocol::{Command, Deal, DealEntry, Grant, Obedience, Reader, Step, Stream, Wish};

use super::memory::{Kind, Link, Pump, Unit, permit};
use super::saving::{Ordered, digest};
use super::shared::Shared;
use super::world::{Act, After, Child, Doing, Main, Setting, World};

impl Setting {
    pub fn child_steps(&self, world: &World, index: usize, steps: &mut Vec<(Act, After)>) {
        let child = &world.children[index];
        if child.doing == Doing::Gone {
            return;
        }
        let mut after = world.clone();
        let mut push = |name, after: World| {
            let after = after.broken.map_or(Ok(after), |broken| Err(broken.to_owned()));
            steps.push((Act::Child(index, name), after));
        };
        if world.main == Main::Gone {
            after.children[index].doing = Doing::Gone;
            return push("ends with main", after);
        }
        // In the graph a child sees orders alone; anywhere else commands go first.
        if child.doing != Doing::InGraph && !child.control.is_empty() && !self.holds_call(index, child) {
            after.obey(self, index);
            return push("obeys", after);
        }
        if let Some(after) = self.saved(world, index) {
            push("puts a snapshot aside", after);
        }
        if let Some((name, after)) = self.looked_into(world, index) {
            push(name, after);
        }
        let done = match child.doing {
            Doing::Idle | Doing::Gone => None,
            Doing::Between => after.begin_next_pass(self, index),
            Doing::Pumping => after.pump(self, index),
            Doing::InGraph => after.run_graph(self, index),
        };
        if let Some(name) = done {
            // Steps that touch nothing that others see may as well happen at once.
            while after.is_by_itself(self, index) && after.run_graph(self, index).is_some() {}
            push(name, after);
        }
    }

    /// Whether a call waits, because the worker makes items again that were made before it, to main.
    fn holds_call(&self, index: usize, child: &Child) -> bool {
        let owes = child.obedience.runs() && child.pump.sending[0].owed() > 0;
        let epoch = child.pump.stream().epoch();
        let holds = self.rules.holding && owes && !self.is_dispatcher(index);
        holds && !Obedience::is_superseded(epoch, child.order)
    }

    pub fn is_dispatcher(&self, index: usize) -> bool {
        index == self.workers
    }
}

/// The links that a child writes to, and which of them is its first.
pub fn outgoing<'a>(
    setting: &Setting,
    index: usize,
    out: &'a mut Shared<Link>,
    far: &'a mut Shared<Link>,
    dealt: &'a mut Shared<Link>,
    dealing: &'a mut Shared<Link>,
) -> (&'a mut Shared<Link>, usize) {
    match setting.is_dispatcher(index) {
        true => (if setting.carried { dealing } else { dealt }, 0),
        false => (if setting.carried { far } else { out }, index),
    }
}

impl World {
    /// Whether the next step of a child is in its graph, with nothing but its own.
    pub fn is_by_itself(&self, setting: &Setting, index: usize) -> bool {
        let child = &self.children[index];
        let reads_share = setting.dispatches && !setting.is_dispatcher(index);
        child.doing == Doing::InGraph
            && !(child.failed && child.made.1 == 0)
            && (!reads_share || child.made.1 > 0 || child.exhausted)
    }

    pub fn obey(&mut self, setting: &Setting, index: usize) {
        let child = &mut self.children[index];
        let ordered = child.control.front().expect("a command waits").clone();
        let step = child.obedience.obey(ordered.command);
        if step == Step::Leave {
            self.finish(setting, index);
            self.children[index].rest();
            return self.obey(setting, index);
        }
        child.control.pop_front();
        match (step, ordered.command) {
            (Step::Run(_), Command::Epoch(epoch) | Command::Repeat(epoch)) => {
                child.pump.begin(Stream::first(epoch));
                child.pump.dealing.begin();
                child.doing = Doing::Pumping;
                (child.read, child.pass, child.made, child.exhausted, child.failed) = (0, 0, (0, 0), false, false);
                child.begin(setting, &ordered);
                if setting.is_dispatcher(index) && setting.is_free() {
                    self.deal_freely(index, epoch, &ordered);
                }
            }
            (Step::Apply | Step::Skip, Command::Call(_)) => {
                child.acknowledged = Some(child.place());
                if step == Step::Apply {
                    self.apply(setting, index);
                }
                let child = &mut self.children[index];
                if !setting.rules.calls {
                    child.rest();
                }
            }
            (Step::End, Command::Stop) => child.doing = Doing::Gone,
            _ => self.broken = Some("a command is obeyed by a step of another one"),
        }
    }

    /// Begins to deal freely, behind what an earlier run has dealt.
    fn deal_freely(&mut self, index: usize, epoch: u32, ordered: &Ordered) {
        let pump = &mut self.children[index].pump;
        let owners = ordered.start.as_ref().and_then(|start| start.owners.clone()).unwrap_or_default();
        pump.dealing.begin_freely(&owners, pump.accounts.iter().map(|account| account.items).sum());
        (self.record.number, self.record.owners, self.late) = (epoch, owners, None);
    }

    /// Records an entry, or leaves that out.
    fn record(&mut self, owner: Option<DealEntry>, is_recorded: bool) {
        self.record.owners.entries.extend(owner.filter(|_| is_recorded));
        // One that has not heard yet that main goes on elsewhere deals to nobody.
        let dispatcher = self.children.last().expect("there are children");
        self.truth.extend(owner.filter(|_| dispatcher.pump.stream().epoch() == self.number));
    }

    /// Applies main's function to the graph of a child, for the first time in this epoch or where it was met before.
    fn apply(&mut self, setting: &Setting, index: usize) {
        let child = &mut self.children[index];
        child.due = None;
        child.applied += 1;
        let place = child.place();
        let is_first = self.met[index].is_none();
        self.met[index].get_or_insert(place);
        // Where the end is ordered, or another epoch, nothing more is made of this one.
        let goes_on = !Obedience::is_superseded(child.pump.stream().epoch(), child.order);
        if setting.restarts && is_first && goes_on && place < self.had[index] {
            self.broken = Some("a function is met before items that main has from before it");
        }
    }

    /// Applies what is due behind the items that were made, before another one is asked for.
    fn meet_due(&mut self, setting: &Setting, index: usize) {
        let child = &self.children[index];
        let place = child.place();
        if child.due.is_some_and(|due| due <= place) {
            self.apply(setting, index);
        }
        let met = self.met[index].is_some_and(|met| met <= place);
        if setting.restarts && met != (self.children[index].applied > 0) {
            self.broken = Some("a function is met between other items than before");
        }
    }

    /// Tells the dispatching process that nothing more of this epoch is wanted.
    pub fn finish(&mut self, setting: &Setting, index: usize) {
        let child = &mut self.children[index];
        if setting.dispatches && !setting.is_dispatcher(index) && setting.rules.leaving && child.doing != Doing::Idle {
            let epoch = child.pump.stream().epoch();
            let grant = child.share.receiving.finish(epoch);
            let taken = child.share.taken;
            (self.dealt[index].grant, self.dealt[index].count) = (grant.word(), taken);
        }
    }

    /// Sends the unit that is due, if there is room.
    fn send(&mut self, setting: &Setting, index: usize) -> Option<&'static str> {
        let Self { children, out, far, dealt, dealing: near, .. } = self;
        let (links, first) = outgoing(setting, index, out, far, dealt, near);
        let pump = &mut children[index].pump;
        let (target, unit) = pump.departing.take()?;
        let item = unit.item();
        if links[first + target].units.len() < setting.ring {
            links[first + target].units.push_back(unit);
            if let Some(item) = item {
                pump.sending[target].sent();
                pump.count(setting, target, digest(item));
            }
        } else if matches!(
            pump.sending[target].reader(links[first + target].grant),
            Some(Reader::Left | Reader::Ahead | Reader::Done)
        ) {
            pump.count(setting, target, 0);
        } else {
            pump.departing = Some((target, unit));
            return None; // the ring is full
        }
        if item.is_some() {
            self.between_items(setting, index);
        }
        Some("sends")
    }

    /// One step of the pump.
    pub fn pump(&mut self, setting: &Setting, index: usize) -> Option<&'static str> {
        if self.children[index].pump.departing.is_some() {
            return self.send(setting, index);
        }
        if !self.children[index].pump.ending {
            self.meet_due(setting, index);
        }
        let Self { children, out, far, dealt, dealing: near, .. } = self;
        let child = &mut children[index];
        let (links, first) = outgoing(setting, index, out, far, dealt, near);
        let pump = &mut child.pump;
        if pump.ending {
            if !child.failed && pump.lacks_some() {
                self.broken = Some("the graph ends before all has come again that the reader has");
                return Some("has ended");
            }
            let Some(target) = pump.dealing.turn() else {
                if setting.is_dispatcher(index) && setting.rules.passes {
                    child.doing = Doing::Between;
                } else {
                    self.finish(setting, index);
                    self.children[index].rest();
                }
                return Some("has ended");
            };
            let kind = if child.failed { Kind::Error } else { Kind::End };
            pump.departing = Some((target, Unit { stream: pump.stream(), kind }));
            pump.dealing.end(target);
            return Some("is about to end");
        }
        let Pump { dealing, sending, .. } = pump;
        let deal =
            dealing.next(|reader| permit(setting.rules, setting.heavy, &mut sending[reader], &links[first + reader]));
        match deal {
            Deal::WaitFor(_) | Deal::WaitForAny => None,
            Deal::Nobody => {
                pump.ending = true;
                Some("is wanted no more")
            }
            Deal::To(target) | Deal::Skip(target) => {
                child.target = target;
                child.skips = matches!(deal, Deal::Skip(_));
                child.may_save = false;
                child.doing = Doing::InGraph;
                Some("asks its graph")
            }
        }
    }

    pub fn begin_next_pass(&mut self, setting: &Setting, index: usize) -> Option<&'static str> {
        let Self { children, out, far, dealt, dealing: near, .. } = self;
        let child = &mut children[index];
        let (links, _) = outgoing(setting, index, out, far, dealt, near);
        let pump = &mut child.pump;
        let (dealing, sending) = (&pump.dealing, &pump.sending);
        if !dealing.is_asked_again(|reader| sending[reader].reader(links[reader].grant).unwrap_or(Reader::Behind)) {
            return None;
        }
        let next = pump.stream().next_pass();
        pump.begin(next);
        let owner = pump.dealing.begin_next();
        child.doing = Doing::Pumping;
        (child.read, child.failed) = (0, false);
        self.record(owner, setting.rules.parting);
        Some("begins once more")
    }

    /// One step in the graph, which ends with an item for the pump, or at its end.
    pub fn run_graph(&mut self, setting: &Setting, index: usize) -> Option<&'static str> {
        let child = &mut self.children[index];
        if child.made.1 > 0 {
            child.made.1 -= 1;
            let item = (child.epoch, child.made.0);
            self.hand_over(setting, index, item);
            return Some("makes an item");
        }
        if child.failed {
            child.pump.ending = true;
            child.doing = Doing::Pumping;
            return Some("fails");
        }
        if setting.is_dispatcher(index) {
            return Some(self.read_source(setting, index, 1, 0));
        }
        if child.exhausted {
            child.pump.ending = true;
            child.doing = Doing::Pumping;
            return Some("comes to its end");
        }
        if !setting.dispatches {
            return Some(self.read_source(setting, index, setting.workers, index));
        }
        self.read_share(setting, index)
    }

    /// Reads an item of a source of its own.
    pub fn read_source(&mut self, setting: &Setting, index: usize, step: usize, first: usize) -> &'static str {
        let child = &mut self.children[index];
        let item = first + step * usize::from(child.read);
        let most = setting.header_of(index);
        if item >= setting.outputs.len() || most.is_some_and(|most| child.read >= most) {
            child.pass += 1;
            child.read = 0;
            if setting.is_dispatcher(index) || child.pass >= setting.passes {
                child.exhausted = true;
            }
            if setting.is_dispatcher(index) {
                child.pump.ending = true;
                child.doing = Doing::Pumping;
            }
            return "comes to the end of a pass";
        }
        child.read += 1;
        if setting.fails(setting.is_dispatcher(index), item as u8) {
            child.failed = true;
        } else if setting.is_dispatcher(index) {
            child.made = (item as u8, 1);
        } else {
            child.made = (item as u8, setting.outputs[item]);
        }
        "reads its source"
    }

    /// Reads what is dealt to a worker, or waits for it.
    pub fn read_share(&mut self, setting: &Setting, index: usize) -> Option<&'static str> {
        let Self { children, out, far, dealt, .. } = self;
        let (child, link) = (&mut children[index], &mut dealt[index]);
        let own = &mut if setting.carried { far } else { out }[index];
        let epoch = child.pump.stream().epoch();
        let wanted = Stream::new(epoch, child.pass + 1);
        if std::mem::take(&mut child.looked) && child.share.receiving.stream() == wanted {
            child.share.set_window(link, setting.dispatch_window);
            child.share_account = std::mem::take(&mut child.share_start);
            return Some("asks for its share");
        }
        if child.share.receiving.stream() != wanted {
            if !setting.rules.passes && child.pass > 0 {
                return None; // nobody will send anything: it waits for ever
            }
            child.share.begin(link, wanted, setting.dispatch_window);
            child.share_account = std::mem::take(&mut child.share_start);
            return Some("asks for its share");
        }
        if setting.header_of(index).is_some_and(|most| child.read >= most) {
            child.pass += 1;
            child.read = 0;
            child.exhausted = child.pass >= setting.passes;
            if setting.rules.leaving {
                link.grant = Grant::new(wanted, Wish::Left).word();
            }
            return Some("has enough of its share");
        }
        let waiting = link.units.len();
        if !child.share.look(link, setting.rules) {
            if link.units.len() < waiting {
                return Some("drops what is over");
            }
            if Obedience::is_superseded(epoch, child.order) {
                own.starving = 0;
                self.finish(setting, index);
                self.children[index].rest();
                return Some("gives the epoch up");
            }
            if own.starving != epoch {
                own.starving = epoch;
                return Some("starves");
            }
            return None;
        }
        own.starving = 0;
        match link.units.pop_front().expect("one waits").kind {
            Kind::Item(of, item) => {
                child.share.took(link);
                child.read += 1;
                child.made = (item, setting.outputs[usize::from(item)]);
                if of != child.epoch {
                    self.broken = Some("an item of another epoch is dealt to a worker");
                } else if setting.saves() {
                    child.share_account.count(digest((of, item)));
                }
            }
            Kind::End => {
                child.pass += 1;
                child.read = 0;
                child.exhausted = child.pass >= setting.passes;
            }
            Kind::Error => child.failed = true,
            Kind::Dealt(dealt) => {
                child.relay = Some(dealt);
                return Some("keeps a snapshot to be passed on");
            }
            Kind::Saved(_) => unreachable!("workers send these to main"),
        }
        Some("takes of its share")
    }

    /// Gives the pump an item that the graph has made: for whose turn it is, or for nobody.
    fn hand_over(&mut self, setting: &Setting, index: usize, item: (u32, u8)) {
        let child = &mut self.children[index];
        child.doing = Doing::Pumping;
        let target = std::mem::take(&mut child.target);
        let deal = if child.skips { Deal::Skip(target) } else { Deal::To(target) };
        let owner = child.pump.dealing.made(deal);
        if setting.rules.recording || owner.is_none() {
            self.record(owner, true);
        } else {
            let late = std::mem::replace(&mut self.late, owner);
            self.record(late, true);
        }
        let child = &mut self.children[index];
        let pump = &mut child.pump;
        if !std::mem::take(&mut child.skips) {
            pump.departing = Some((target, Unit { stream: pump.stream(), kind: Kind::Item(item.0, item.1) }));
            pump.dealing.advance();
            return;
        }
        if pump.sending[target].owed() > 0 {
            pump.count(setting, target, digest(item));
            pump.sending[target].made_again();
            if pump.has_made_other_items_again(target) {
                self.broken = Some("what is made again is not what the reader has");
            }
        } else {
            pump.count(setting, target, 0);
        }
        self.children[index].pump.dealing.advance();
        self.between_items(setting, index);
    }
}
