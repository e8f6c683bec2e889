//! Models the steps of child processes: running graphs, sending and reading items, and executing commands.

use torchdata_core::protocol::{Choice, Command, CommandState, Grant, Reader, Sending, Step, Stream, Wish};

use super::memory::{Kind, Link, Pump, Unit, permit};
use super::saving::digest;
use super::world::{Act, Child, Doing, Links, Main, Setting, Take, World};

impl Setting {
    pub fn child_steps(&self, world: &World, index: usize, take: &mut Take<'_>) {
        let child = &world.children[index];
        if child.doing == Doing::Exited {
            return;
        }
        let mut push = |name, after: World| {
            let after = after.broken.map_or(Ok(after), |broken| Err(broken.to_owned()));
            take(Act::Child(index, name), after);
        };
        if world.main == Main::Exited {
            let mut after = world.clone();
            after.children[index].doing = Doing::Exited;
            return push("ends with main", after);
        }
        // A child reads no commands while its graph runs.
        if child.doing != Doing::InGraph && !child.control.is_empty() && !self.holds_call(index, child) {
            let mut after = world.clone();
            after.execute(self, index);
            return push("obeys", after);
        }
        if let Some(after) = self.saved(world, index) {
            push("puts a snapshot aside", after);
        }
        if let Some((name, after)) = self.looked_into(world, index) {
            push(name, after);
        }
        if world.is_waiting(self, index) {
            return;
        }
        let mut after = world.clone();
        let name = match child.doing {
            Doing::Idle | Doing::Exited => unreachable!("it waits"),
            Doing::Between => after.begin_next_pass(index),
            Doing::Pumping => after.pump(self, index),
            Doing::InGraph => after.run_graph(self, index),
        };
        // Steps that affect only one child are executed immediately, so that fewer interleavings are explored.
        while after.is_by_itself(self, index) {
            after.run_graph(self, index);
        }
        push(name, after);
    }

    /// Returns whether a worker must finish recomputing items before it may execute a requested function call.
    fn holds_call(&self, index: usize, child: &Child) -> bool {
        let recomputes = child.command_state.runs() && child.pump.sending[0].outstanding() > 0;
        let epoch = child.pump.stream().epoch();
        let holds = recomputes && !self.is_dispatcher(index);
        holds && !CommandState::is_superseded(epoch, child.order)
    }

    pub fn is_dispatcher(&self, index: usize) -> bool {
        index == self.workers
    }
}

fn is_away(sending: &Sending, link: &Link) -> bool {
    matches!(sending.reader(link.grant), Some(Reader::Left | Reader::Ahead | Reader::Done))
}

fn next_choice(setting: &Setting, pump: &Pump, links: &Links, first: usize) -> (Choice, Vec<Sending>) {
    let mut sending = pump.sending.clone();
    let mut permit = |reader: usize| permit(setting.heavy, &mut sending[reader], &links[first + reader]);
    // All shards of a worker send their items over the same link.
    let next =
        if pump.sending.len() == 1 { pump.dispatch.next_of_shards(permit(0)) } else { pump.dispatch.next(permit) };
    (next, sending)
}

impl World {
    pub fn outgoing(&self, setting: &Setting, index: usize) -> (&Links, usize) {
        match (setting.is_dispatcher(index), setting.carried) {
            (true, false) => (&self.dispatched, 0),
            (true, true) => (&self.elsewhere.dispatch, 0),
            (false, false) => (&self.out, index),
            (false, true) => (&self.elsewhere.far, index),
        }
    }

    pub fn writer(&mut self, setting: &Setting, index: usize) -> (&mut Child, &mut Links, usize) {
        let Self { children, out, dispatched, elsewhere, .. } = self;
        let (links, first) = match (setting.is_dispatcher(index), setting.carried) {
            (true, false) => (dispatched, 0),
            (true, true) => (&mut elsewhere.dispatch, 0),
            (false, false) => (out, index),
            (false, true) => (&mut elsewhere.far, index),
        };
        (&mut children[index], links, first)
    }

    fn is_waiting(&self, setting: &Setting, index: usize) -> bool {
        let child = &self.children[index];
        let (links, first) = self.outgoing(setting, index);
        match (child.doing, &child.pump) {
            (Doing::Idle | Doing::Exited, _) => true,
            (Doing::Between, Pump { dispatch, sending, .. }) => !dispatch
                .is_repeat_requested(|reader| sending[reader].reader(links[reader].grant).unwrap_or(Reader::Earlier)),
            (Doing::Pumping, Pump { departing: Some((target, _)), sending, .. }) => {
                let link = &links[first + target];
                link.units.len() >= setting.ring && !is_away(&sending[*target], link)
            }
            (Doing::Pumping, Pump { ending: true, .. }) => false,
            (Doing::Pumping, pump) => {
                let next = next_choice(setting, pump, links, first).0;
                matches!(next, Choice::WaitFor(_))
            }
            (Doing::InGraph, _) => {
                let at_source = child.made.1 == 0 && !child.failed && !child.exhausted;
                at_source && setting.dispatches && !setting.is_dispatcher(index) && self.awaits_share(setting, index)
            }
        }
    }

    /// Returns whether a worker has reported in its link's header that it waits for a dispatched item.
    fn awaits_share(&self, setting: &Setting, index: usize) -> bool {
        let (child, link) = (&self.children[index], &self.dispatched[index]);
        let own = &self.outgoing(setting, index).0[index];
        let epoch = child.pump.stream().epoch();
        if child.share.receiving.stream() != Stream::new(epoch, child.pass + 1) {
            return false;
        }
        let has_enough = setting.header_of(index).is_some_and(|most| child.read >= most);
        let nothing_waits = child.share.glance(link) == Some(false);
        let is_starving = own.starving == epoch && !CommandState::is_superseded(epoch, child.order);
        !child.looked && !has_enough && nothing_waits && is_starving
    }

    pub fn is_by_itself(&self, setting: &Setting, index: usize) -> bool {
        let child = &self.children[index];
        let reads_share = setting.dispatches && !setting.is_dispatcher(index);
        child.doing == Doing::InGraph
            && !(child.failed && child.made.1 == 0)
            && (!reads_share || child.made.1 > 0 || child.exhausted)
    }

    pub fn execute(&mut self, setting: &Setting, index: usize) {
        let child = &mut self.children[index];
        let ordered = child.control.front().expect("a command waits").clone();
        let step = child.command_state.accept(ordered.command);
        if step == Step::Leave {
            self.finish(setting, index);
            self.children[index].rest();
            return self.execute(setting, index);
        }
        child.control.pop_front();
        match (step, ordered.command) {
            (Step::Run { .. }, Command::Epoch(epoch) | Command::Repeat(epoch)) => {
                child.pump.begin(Stream::first(epoch));
                child.pump.dispatch.turn.start();
                child.doing = Doing::Pumping;
                (child.read, child.pass, child.made, child.exhausted, child.failed) = (0, 0, (0, 0), false, false);
                child.begin(&ordered);
            }
            (Step::Apply, Command::Call) => {
                child.acknowledged = true;
                self.apply(setting, index);
            }
            (Step::End, Command::Stop) => child.doing = Doing::Exited,
            _ => self.broken = Some("a step of another command executes a command"),
        }
    }

    fn apply(&mut self, setting: &Setting, index: usize) {
        let child = &mut self.children[index];
        child.applied += 1;
        // A child skips the remaining items of an abandoned epoch.
        let continues = !CommandState::is_superseded(child.pump.stream().epoch(), child.order);
        if setting.restarts && continues && child.position() < self.kept.had[index] {
            self.broken = Some("a function is reached before items that main already has");
        }
    }

    pub fn finish(&mut self, setting: &Setting, index: usize) {
        let child = &mut self.children[index];
        if setting.dispatches && !setting.is_dispatcher(index) && child.doing != Doing::Idle {
            let epoch = child.pump.stream().epoch();
            let grant = child.share.receiving.finish(epoch);
            let taken = child.share.taken;
            (self.dispatched[index].grant, self.dispatched[index].count) = (grant.word(), taken);
        }
    }

    /// Sends the message that the child has prepared.
    fn send(&mut self, setting: &Setting, index: usize) -> &'static str {
        let (child, links, first) = self.writer(setting, index);
        let pump = &mut child.pump;
        let (target, unit) = pump.departing.take().expect("one is due");
        let item = unit.item();
        if links[first + target].units.len() < setting.ring {
            links[first + target].units.push_back(unit);
            if let Some(item) = item {
                pump.sending[target].sent();
                pump.count(setting, target, digest(item));
            }
        } else {
            pump.count(setting, target, 0);
        }
        if item.is_some() {
            self.between_items(setting, index);
        }
        "sends"
    }

    pub fn pump(&mut self, setting: &Setting, index: usize) -> &'static str {
        if self.children[index].pump.departing.is_some() {
            return self.send(setting, index);
        }
        let (child, links, first) = self.writer(setting, index);
        let pump = &mut child.pump;
        if pump.ending {
            if !child.failed && pump.lacks_some() {
                self.broken = Some("the graph ends before all received items are recomputed");
                return "has ended";
            }
            let Some(target) = pump.dispatch.turn.next() else {
                if setting.is_dispatcher(index) {
                    child.doing = Doing::Between;
                } else {
                    self.finish(setting, index);
                    self.children[index].rest();
                }
                return "has ended";
            };
            let kind = if child.failed { Kind::Error } else { Kind::End };
            pump.departing = Some((target, Unit { stream: pump.stream(), kind }));
            pump.dispatch.turn.end(target);
            return "is about to end";
        }
        let (next, sending) = next_choice(setting, pump, links, first);
        pump.sending = sending;
        match next {
            Choice::WaitFor(_) => unreachable!("it waits"),
            Choice::Nobody => {
                pump.ending = true;
                "is wanted no more"
            }
            Choice::To(target) | Choice::Skip(target) => {
                child.target = target;
                child.skips = matches!(next, Choice::Skip(_));
                child.may_save = false;
                child.doing = Doing::InGraph;
                "asks its graph"
            }
        }
    }

    pub fn begin_next_pass(&mut self, index: usize) -> &'static str {
        let child = &mut self.children[index];
        let pump = &mut child.pump;
        let next = pump.stream().next_pass();
        pump.begin(next);
        pump.dispatch.turn.start();
        child.doing = Doing::Pumping;
        (child.read, child.failed) = (0, false);
        "begins once more"
    }

    /// Runs a child's graph until the graph reads an item, yields an item, fails or ends.
    pub fn run_graph(&mut self, setting: &Setting, index: usize) -> &'static str {
        let child = &mut self.children[index];
        if child.made.1 > 0 {
            child.made.1 -= 1;
            let item = (child.epoch, child.made.0);
            self.hand_over(setting, index, item);
            return "makes an item";
        }
        if child.failed {
            child.pump.ending = true;
            child.doing = Doing::Pumping;
            return "fails";
        }
        if setting.is_dispatcher(index) {
            return self.read_source(setting, index, 1, 0);
        }
        if child.exhausted {
            child.pump.ending = true;
            child.doing = Doing::Pumping;
            return "comes to its end";
        }
        if !setting.dispatches {
            return self.read_source(setting, index, setting.workers, index);
        }
        self.read_share(setting, index)
    }

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

    pub fn read_share(&mut self, setting: &Setting, index: usize) -> &'static str {
        let (child, link) = (&mut self.children[index], &mut self.dispatched[index]);
        let epoch = child.pump.stream().epoch();
        let wanted = Stream::new(epoch, child.pass + 1);
        if std::mem::take(&mut child.looked) && child.share.receiving.stream() == wanted {
            child.share.set_window(link, setting.dispatch_window);
            child.share_account = std::mem::take(&mut child.share_start);
            return "asks for its share";
        }
        if child.share.receiving.stream() != wanted {
            child.share.begin(link, wanted, setting.dispatch_window);
            child.share_account = std::mem::take(&mut child.share_start);
            return "asks for its share";
        }
        if setting.header_of(index).is_some_and(|most| child.read >= most) {
            child.pass += 1;
            child.read = 0;
            child.exhausted = child.pass >= setting.passes;
            link.grant = Grant::new(wanted, Wish::Left).word();
            return "has enough of its share";
        }
        let waiting = link.units.len();
        if !child.share.look(link) {
            if link.units.len() < waiting {
                return "drops what is over";
            }
            if CommandState::is_superseded(epoch, child.order) {
                self.starve(setting, index, 0);
                self.finish(setting, index);
                self.children[index].rest();
                return "gives the epoch up";
            }
            self.starve(setting, index, epoch);
            return "starves";
        }
        self.starve(setting, index, 0);
        let (child, link) = (&mut self.children[index], &mut self.dispatched[index]);
        match link.units.pop_front().expect("one waits").kind {
            Kind::Item(of, item) => {
                child.share.took(link);
                child.read += 1;
                child.made = (item, setting.outputs[usize::from(item)]);
                if of != child.epoch {
                    self.broken = Some("an item of another epoch is dispatched to a worker");
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
            Kind::Dispatched(dispatched) => {
                child.relay = Some(dispatched);
                return "keeps a snapshot to be passed on";
            }
            Kind::Saved(_) => unreachable!("workers send these to main"),
        }
        "takes of its share"
    }

    /// Sets the worker's field `starving`.
    fn starve(&mut self, setting: &Setting, index: usize, epoch: u32) {
        if self.outgoing(setting, index).0[index].starving != epoch {
            self.writer(setting, index).1[index].starving = epoch;
        }
    }

    fn hand_over(&mut self, setting: &Setting, index: usize, item: (u32, u8)) {
        let child = &mut self.children[index];
        child.doing = Doing::Pumping;
        let target = std::mem::take(&mut child.target);
        let pump = &mut child.pump;
        if !std::mem::take(&mut child.skips) {
            pump.departing = Some((target, Unit { stream: pump.stream(), kind: Kind::Item(item.0, item.1) }));
            pump.dispatch.turn.advance();
            return;
        }
        if pump.sending[target].outstanding() > 0 {
            pump.count(setting, target, digest(item));
            pump.sending[target].recomputed();
            if pump.has_recomputed_other_items(target) {
                self.broken = Some("a recomputed item is not the item that the reader has");
            }
        } else {
            pump.count(setting, target, 0);
        }
        self.children[index].pump.dispatch.turn.advance();
        self.between_items(setting, index);
    }
}
