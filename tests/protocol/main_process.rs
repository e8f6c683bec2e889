//! Models the main process, which begins and leaves epochs, requests items, and commands its children.

use torchdata_core::protocol::{Command, Next, Stream};

use super::memory::Kind;
use super::saving::{Ordered, digest};
use super::world::{Act, After, Doing, Ended, Main, Setting, Take, Thread, WORKERS, World};

pub enum Asked {
    Item((u32, u8)),
    Ended(Ended),
    /// The main process did something other than delivering an item.
    Busy,
}

impl Setting {
    pub fn main_steps(&self, world: &World, take: &mut Take<'_>) {
        if world.main == Main::Exited {
            return;
        }
        let mut push = |name, after: After| take(Act::Main(name), after);
        if !matches!(world.main, Main::Stopping(_) | Main::Reading(_)) {
            // The main process checks for exits even while it waits for answers.
            if world.is_any_exited() && !(self.restarts && world.main == Main::Between) {
                let mut detected = world.clone();
                if !self.restarts || !detected.replace_processes(self) {
                    detected.main = Main::Stopping(0);
                }
                push("learns of an exit", Ok(detected));
                if !self.restarts {
                    return;
                }
            }
        }
        if let Main::Reading(_) = world.main {
            self.reading(world, take);
            return self.thread_steps(world, take);
        }
        let mut after = world.clone();
        match world.main {
            Main::Reading(_) | Main::Exited => unreachable!("seen to"),
            Main::Between if world.epoch == self.epochs => {
                after.main = Main::Stopping(0);
                push("ends everything", Ok(after));
            }
            Main::Between => {
                after.epoch += 1;
                after.begin_epoch(self, None);
                push("begins an epoch", Ok(after));
            }
            Main::Announcing(_, 0) if self.reads_ahead => {
                after.main = Main::Replacing(after.number);
                push("has sent all commands", Ok(after));
            }
            Main::Announcing(_, 0) => {
                after.main = Main::Reading(false);
                push("has sent all commands", Ok(after));
            }
            Main::Announcing(epoch, left) => {
                let ordered = after.ordered(left - 1);
                // The dispatching process, which is the last child, must receive the command before the workers.
                if world.kept.announced >> (left - 1) & 1 == 1 || after.send_order(left - 1, ordered) {
                    after.main = Main::Announcing(epoch, left - 1);
                    push("tells a child of the epoch", Ok(after));
                }
            }
            Main::Replacing(epoch) => {
                after.thread = Some(Thread { epoch, holds: None });
                after.main = Main::Reading(false);
                push("begins to read", Ok(after));
            }
            Main::Paused => {
                let mut on = world.clone();
                on.set_window(self.window);
                on.main = Main::Reading(false);
                push("lets them go on", Ok(on));
                if after.called == 0 {
                    after.called = 1;
                    after.main = Main::Calling(self.children(), true);
                    push("calls while they halt", Ok(after));
                }
            }
            Main::Calling(0, paused) => {
                let is_acknowledged =
                    |world: &World| (0..self.children()).all(|index| world.acknowledged(index) || world.rests(index));
                if is_acknowledged(world) {
                    let mut children = world.children.iter().enumerate();
                    if !children.all(|(index, child)| child.applied == 1 || world.rests(index)) {
                        return push(
                            "has all answers",
                            Err("a function was not applied once by each child".to_owned()),
                        );
                    }
                    let window = if paused { 0 } else { self.window };
                    after.set_window(window);
                    after.main = if paused { Main::Paused } else { Main::Reading(false) };
                    push("has all answers", Ok(after));
                } else if after.relieve(self) {
                    push("takes in, for answers", Ok(after));
                }
            }
            Main::Calling(left, paused) => {
                let index = left - 1;
                if after.rests(index) || after.send_order(index, plainly(Command::Call)) {
                    after.main = Main::Calling(index, paused);
                    push("calls a child", Ok(after));
                }
            }
            Main::Stopping(count) if count == self.children() => {
                // The main process kills children that do not exit in time.
                for child in 0..self.children() {
                    after.children[child].doing = Doing::Exited;
                }
                after.main = Main::Exited;
                push("reaps", Ok(after));
            }
            Main::Stopping(count) => {
                let _ = after.send_order(count, plainly(Command::Stop)); // a child whose link is full is killed later
                after.thread = None;
                after.main = Main::Stopping(count + 1);
                push("tells a child to stop", Ok(after));
            }
        }
        self.thread_steps(world, take);
    }

    pub fn thread_steps(&self, world: &World, take: &mut Take<'_>) {
        let Some(thread) = world.thread.filter(|thread| thread.holds.is_none()) else { return };
        if world.main == Main::Exited || matches!(world.main, Main::Paused | Main::Calling(_, true)) {
            return;
        }
        if thread.epoch != world.number {
            return; // the thread must stop, so it takes no item
        }
        let Some((asked, mut after)) = world.ask(self) else { return };
        let holds = match asked {
            Asked::Item(item) => Some(Ok(item)),
            Asked::Ended(how) => Some(Err(how)),
            Asked::Busy => None,
        };
        after.thread = Some(Thread { holds, ..thread });
        take(Act::Thread("reads"), Ok(after));
    }

    pub fn reading(&self, world: &World, take: &mut Take<'_>) {
        let mut push = |name, after: World| take(Act::Main(name), Ok(after));
        let idle = !world.waits;
        if self.breaks && idle && world.delivered > 0 {
            let mut after = world.clone();
            after.set_window(0);
            after.main = Main::Between;
            push("breaks", after);
        }
        if self.pauses && idle && !world.paused_once && world.thread.is_none_or(|thread| thread.holds.is_some()) {
            let mut after = world.clone();
            after.paused_once = true;
            after.set_window(0);
            after.main = Main::Paused;
            push("halts them", after);
        }
        if self.calls && idle && world.called == 0 {
            let mut after = world.clone();
            after.called = 1;
            after.main = Main::Calling(self.children(), false);
            push("calls", after);
        }
        if idle && world.resumes > 0 {
            self.resume_steps(world, take);
        }
        let asked = if self.reads_ahead { world.take_read_ahead() } else { world.ask(self) };
        let Some((asked, mut after)) = asked else { return };
        let stepped = match asked {
            Asked::Item(item) => after.deliver(self, item),
            Asked::Ended(Ended::Over) => after.complete(self),
            Asked::Ended(Ended::Failed) if self.must_resume(world) => Err("it fails but could resume".to_owned()),
            Asked::Ended(Ended::Failed) => {
                after.set_window(0);
                after.thread = None;
                after.main = if after.has_exited { Main::Stopping(0) } else { Main::Between };
                Ok(())
            }
            Asked::Busy => Ok(()),
        };
        take(Act::Main("asks for an item"), stepped.map(|()| after));
    }
}

pub fn plainly(command: Command) -> Ordered {
    Ordered { command, epoch: 0, start: None }
}

impl World {
    pub fn begin_collecting(&mut self, setting: &Setting) {
        self.collecting.turn.start();
        self.delivered = 0;
        self.seen = 0;
        self.received = 0;
        self.waits = false;
        for peer in 0..setting.workers {
            self.held[peer].clear();
            self.ends[peer].begin(&mut self.out[peer], Stream::first(self.number), setting.window);
        }
    }

    pub fn set_window(&mut self, window: u64) {
        for (end, link) in self.ends.iter_mut().zip(self.out.iter_mut()) {
            end.set_window(link, window);
        }
    }

    fn arrived(&self) -> Option<[bool; WORKERS]> {
        let mut arrived = [false; WORKERS];
        for (peer, (end, link)) in self.ends.iter().zip(self.out.iter()).enumerate() {
            arrived[peer] = end.glance(link)?;
        }
        Some(arrived)
    }

    fn drop_old(&mut self) {
        let Self { ends, out, .. } = self;
        for (peer, end) in ends.iter().enumerate() {
            if end.glance(&out[peer]).is_none() {
                end.look(&mut out[peer]);
            }
        }
    }

    fn starving(&self) -> [bool; WORKERS] {
        let mut starving = [false; WORKERS];
        self.out.iter().enumerate().for_each(|(peer, link)| starving[peer] = link.starving == self.number);
        starving
    }

    fn take_read_ahead(&self) -> Option<(Asked, Self)> {
        let asked = match self.thread.as_ref()?.holds? {
            Ok(item) => Asked::Item(item),
            Err(how) => Asked::Ended(how),
        };
        let mut after = self.clone();
        after.thread.as_mut().expect("the thread has an item").holds = None;
        Some((asked, after))
    }

    fn ask(&self, setting: &Setting) -> Option<(Asked, Self)> {
        let Some(arrived) = self.arrived() else {
            let mut after = self.clone();
            after.drop_old();
            return Some((Asked::Busy, after));
        };
        let starving = self.starving();
        let mut collecting = (*self.collecting).clone();
        let next = collecting.next(
            |peer| arrived[peer] || !self.held[peer].is_empty(),
            |peer| arrived[peer],
            |peer| starving[peer],
        );
        let finds_exit = self.waits && !self.has_exited && self.is_any_exited();
        if self.waits && next == Next::Wait && !finds_exit {
            return None;
        }
        let mut after = self.clone();
        after.collecting.set(collecting);
        let asked = after.collect(setting, next, finds_exit);
        Some((asked, after))
    }

    fn collect(&mut self, setting: &Setting, next: Next, finds_exit: bool) -> Asked {
        // The main process may detect the exit of a child before reading all messages of this child.
        if finds_exit {
            self.waits = false;
            if setting.restarts && self.replace_processes(setting) {
                return Asked::Busy;
            }
            self.has_exited = true;
            self.collecting.note_exit();
            return Asked::Busy;
        }
        match next {
            Next::Deliver(peer) => {
                self.waits = false;
                let taken_in = self.held[peer].pop_front();
                let is_new = taken_in.is_none();
                let unit = taken_in.or_else(|| self.out[peer].units.pop_front()).expect("it was ready");
                match unit.kind {
                    Kind::Item(epoch, item) => {
                        self.collecting.turn.advance();
                        if setting.saves() {
                            let received = self.received;
                            let lag = |total| setting.lag(total, received);
                            self.both_books().for_each(|books| books.deliver(peer, digest((epoch, item)), lag));
                        }
                        if is_new {
                            self.ends[peer].took(&mut self.out[peer]);
                        }
                        Asked::Item((epoch, item))
                    }
                    Kind::End => {
                        self.collecting.turn.end(peer);
                        self.both_books().for_each(|books| books.end(peer));
                        Asked::Busy
                    }
                    kind @ (Kind::Saved(_) | Kind::Dispatched(_)) => {
                        self.keep(setting, peer, &kind);
                        Asked::Busy
                    }
                    Kind::Error => Asked::Ended(Ended::Failed),
                }
            }
            Next::TakeIn(peer) => {
                self.take_in(peer);
                Asked::Busy
            }
            Next::Wait => {
                self.waits = true;
                Asked::Busy
            }
            Next::Fail => Asked::Ended(Ended::Failed),
            Next::Over => Asked::Ended(Ended::Over),
        }
    }

    pub fn take_in(&mut self, peer: usize) {
        let unit = self.out[peer].units.pop_front().expect("it had arrived");
        if matches!(unit.kind, Kind::Item(..)) {
            self.ends[peer].took_in(&mut self.out[peer]);
        }
        self.held[peer].push_back(unit);
    }

    /// Takes a worker's message or permits workers to send one more item, and returns whether either was possible.
    fn relieve(&mut self, setting: &Setting) -> bool {
        let arrived = self.arrived().unwrap_or_else(|| {
            self.drop_old();
            self.arrived().expect("what is over was dropped")
        });
        let starving = self.starving();
        if let Some(peer) = self.collecting.to_take_in(|peer| arrived[peer], |peer| starving[peer]) {
            self.take_in(peer);
            return true;
        }
        let mut relieved = false;
        for peer in (0..setting.workers).filter(|&peer| starving.contains(&true) && !starving[peer]) {
            let (end, link) = (&self.ends[peer], &self.out[peer]);
            let one_more = end.receiving.one_more();
            if link.grant != one_more.word() {
                end.announce(&mut self.out[peer], one_more, end.receiving.window().max(1));
                relieved = true;
            }
        }
        relieved
    }

    pub fn deliver(&mut self, setting: &Setting, (epoch, item): (u32, u8)) -> Result<(), String> {
        let expected = setting.expected();
        if epoch != self.epoch {
            return Err(format!("an item of epoch {epoch} is delivered in epoch {}", self.epoch));
        }
        if setting.in_order && expected.get(usize::from(self.delivered)) != Some(&item) {
            return Err(format!("item {item} is delivered as number {} of {expected:?}", self.delivered));
        }
        self.delivered += 1;
        if setting.saves() {
            self.received += 1;
        }
        // The number `seen` contains four bits per item, which count how often the item was delivered.
        self.seen += 1 << (4 * u32::from(item));
        let most = expected.iter().filter(|&&other| other == item).count() as u32;
        if (self.seen >> (4 * u32::from(item))) & 15 > most {
            return Err(format!("item {item} is delivered too often"));
        }
        Ok(())
    }

    pub fn complete(&mut self, setting: &Setting) -> Result<(), String> {
        let all = setting.expected();
        let expected = all.len();
        if usize::from(self.delivered) != expected {
            return Err(format!("the epoch ends as if it were complete after {} of {expected} items", self.delivered));
        }
        let fails = setting.fails_at.is_some_and(|item| usize::from(item) < setting.outputs.len());
        if fails && expected > 0 && setting.header.is_none() {
            return Err("an epoch with a failing graph ends as if it were complete".to_owned());
        }
        self.set_window(0);
        self.main = Main::Between;
        Ok(())
    }
}
