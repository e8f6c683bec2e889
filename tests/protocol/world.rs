//! A loader in small: main, workers and, with dispatching, the dispatching process, over rings of a few units.
//!
//! What is decided is decided by the machines of `torchdata_core::protocol`; here are only memory and processes. `Rules` turns
//! back single ones of their decisions, to what they were before defects were mended.

use std::collections::VecDeque;

use torchdata_core::protocol::{
    Collecting, Command, Control, Deal, Dealing, Grant, Judgement, Next, Permit, Reader, Receiving, Sending, Step,
    Stream, Wish,
};

use super::explore::{self, Model};

/// What the protocol does; all true in the present one.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// A reader leaves units of later streams where they are, and a grant is for one epoch.
    pub streams: bool,
    /// Main takes in what others have while the worker whose turn it is starves.
    pub take_in: bool,
    /// What a dead process has sent is delivered, and then its death is an error.
    pub deaths: bool,
    /// Who reads for an epoch that was left takes nothing.
    pub late_readers: bool,
    /// A call leaves the epoch running.
    pub calls: bool,
    /// The dispatching process runs once more for workers that read their source again.
    pub passes: bool,
    /// A worker that is done with its epoch, or has left a pass, says so.
    pub leaving: bool,
}

pub const PRESENT: Rules =
    Rules { streams: true, take_in: true, deaths: true, late_readers: true, calls: true, passes: true, leaving: true };

/// Which loader, and what may happen to it.
#[derive(Debug, Clone)]
pub struct Setting {
    pub rules: Rules,
    pub workers: usize,
    pub dispatches: bool,
    /// By number of an item of the source: how many items a worker makes of it.
    pub outputs: &'static [u8],
    pub window: u64,
    pub dispatch_window: u64,
    /// Units that a ring holds.
    pub ring: usize,
    pub epochs: u32,
    /// How often a worker's graph reads its source.
    pub passes: u32,
    /// How many items of its source each of the first `leavers` workers takes in a pass; None: all.
    pub header: Option<u8>,
    pub leavers: usize,
    pub in_order: bool,
    /// Main may leave an epoch after any item.
    pub breaks: bool,
    /// Main may halt everybody after any item, once, call everybody then, and go on.
    pub pauses: bool,
    /// Main may call everybody after any item, once.
    pub calls: bool,
    /// One process may die at any moment.
    pub deaths: bool,
    /// A thread in main reads one item ahead.
    pub reads_ahead: bool,
    /// The number of the source's item at which the graph fails: of a worker, or where items are dispatched, of that process.
    pub fails_at: Option<u8>,
}

/// What a unit says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// The epoch in which it was made, and which item it is.
    Item(u32, u8),
    End,
    Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Unit {
    stream: Stream,
    kind: Kind,
}

/// A link: what lies in shared memory.
#[derive(Debug, Clone, Hash)]
struct Link {
    units: VecDeque<Unit>,
    /// The reader's word, and the bare count in it, which was all there was.
    grant: u64,
    count: u32,
    /// The epoch in which the writer starves.
    starving: u32,
}

impl Link {
    fn new() -> Self {
        Self { units: VecDeque::new(), grant: Grant::NONE, count: 0, starving: 0 }
    }
}

/// One end of a link that is read.
#[derive(Debug, Clone, Hash, Default)]
struct ReadEnd {
    receiving: Receiving,
    taken: u32,
}

impl ReadEnd {
    fn tell(&self, link: &mut Link, grant: Grant, extra: u64) {
        link.grant = grant.word();
        link.count = self.taken + extra as u32;
    }

    fn begin(&mut self, link: &mut Link, stream: Stream, window: u64) {
        self.taken = 0;
        let grant = self.receiving.begin(stream, window);
        self.tell(link, grant, window);
    }

    fn set_window(&mut self, link: &mut Link, window: u64) {
        let grant = self.receiving.set_window(window);
        self.tell(link, grant, window);
    }

    fn took(&mut self, link: &mut Link) {
        self.taken += 1;
        let grant = self.receiving.take();
        self.tell(link, grant, self.receiving.window());
    }

    fn took_in(&mut self, link: &mut Link) {
        self.taken += 1;
        self.receiving.take();
        self.tell(link, self.receiving.relief(), self.receiving.window().max(1));
    }

    /// Drops what is over, and tells whether a unit of the stream that is read, waits.
    fn look(&self, link: &mut Link, rules: Rules) -> bool {
        while let Some(unit) = link.units.front() {
            match self.receiving.judge(unit.stream) {
                Judgement::Take => return true,
                Judgement::Leave if rules.streams => return false,
                Judgement::Leave | Judgement::Drop => drop(link.units.pop_front()),
            }
        }
        false
    }
}

/// A child's pump over its links.
#[derive(Debug, Clone, Hash)]
struct Pump {
    dealing: Dealing,
    sending: Vec<Sending>,
    departing: Option<(usize, Unit)>,
    ending: bool,
}

impl Pump {
    fn new(links: usize) -> Self {
        Self { dealing: Dealing::new(links), sending: vec![Sending::default(); links], departing: None, ending: false }
    }

    fn begin(&mut self, stream: Stream) {
        self.dealing.begin();
        self.sending.iter_mut().for_each(|sending| sending.begin(stream));
        self.departing = None;
        self.ending = false;
    }

    fn stream(&self) -> Stream {
        self.sending[0].stream()
    }
}

/// What a child is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Doing {
    /// Waiting for a command.
    Idle,
    /// Pumping.
    Pumping,
    /// In its graph, for an item (a worker with dispatching may wait there).
    InGraph,
    /// After a pass, waiting for another one to be asked for (the dispatching process).
    Between,
    Gone,
}

#[derive(Debug, Clone, Hash)]
struct Child {
    doing: Doing,
    control: VecDeque<Command>,
    order: u64,
    acknowledged: u8,
    pump: Pump,
    /// Whom the item is for that the graph makes; None: for nobody.
    target: Option<usize>,
    /// Of a worker: its end of the link from the dispatching process.
    share: ReadEnd,
    /// Items of the source that it has read in this pass, and passes that it has begun.
    read: u8,
    pass: u32,
    /// What it has made of an item of the source and not sent yet: which one, how many.
    made: (u8, u8),
    /// Whether the source has ended for it.
    exhausted: bool,
    failed: bool,
}

/// What main is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Main {
    /// About to begin an epoch: its collector has begun, and so many children have been told.
    Telling(u32, usize),
    /// The old thread that reads ahead is to be replaced.
    Replacing(u32),
    /// Asking for the next item; `true`: nothing was ready.
    Reading(bool),
    /// Halted.
    Paused,
    /// Calling: so many children have been told, then waits for all. Back to halted or to reading.
    Calling(usize, bool),
    /// The epoch is over.
    Between,
    /// Ending everything: so many children have been told.
    Stopping(usize),
    Gone,
}

/// The thread that reads ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Thread {
    epoch: u32,
    holds: Option<Result<(u32, u8), Ended>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Ended {
    Over,
    Failed,
}

#[derive(Debug, Clone, Hash)]
pub struct World {
    main: Main,
    epoch: u32,
    collecting: Collecting,
    ends: Vec<ReadEnd>,
    held: Vec<VecDeque<Unit>>,
    waits: bool,
    bereaved: bool,
    /// Old rule: the epoch was stopped by a death.
    stopped: bool,
    delivered: u8,
    seen: u32,
    paused_once: bool,
    called: u8,
    thread: Option<Thread>,
    may_die: bool,
    children: Vec<Child>,
    /// Links of the workers to main, and of the dispatching process to the workers.
    out: Vec<Link>,
    dealt: Vec<Link>,
}

/// The world after a step, or what the step breaks.
type After = explore::After<World>;

/// Who does something, and what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Main(&'static str),
    Thread(&'static str),
    Child(usize, &'static str),
    Dies(usize),
    MainDies,
}

const CONTROL: usize = 3;

impl Setting {
    fn children(&self) -> usize {
        self.workers + usize::from(self.dispatches)
    }

    /// What a worker makes of the items of its share, in order: (item of the source, place among what was made of it).
    fn made_by(&self, worker: usize) -> Vec<u8> {
        let source = 0..self.outputs.len() as u8;
        let share: Vec<u8> = source.filter(|&item| item as usize % self.workers == worker).collect();
        let share = &share[..self.header_of(worker).map_or(share.len(), |most| share.len().min(most.into()))];
        let pass = share.iter().flat_map(|&item| (0..self.outputs[item as usize]).map(move |_| item));
        let pass: Vec<u8> = pass.collect();
        (0..self.passes).flat_map(|_| pass.iter().copied()).collect()
    }

    fn header_of(&self, worker: usize) -> Option<u8> {
        self.header.filter(|_| worker < self.leavers.min(self.workers))
    }

    /// What an epoch delivers in strict order.
    fn expected(&self) -> Vec<u8> {
        let mut shares: Vec<VecDeque<u8>> = (0..self.workers).map(|worker| self.made_by(worker).into()).collect();
        let mut expected = Vec::new();
        while shares.iter().any(|share| !share.is_empty()) {
            shares.iter_mut().for_each(|share| expected.extend(share.pop_front()));
        }
        expected
    }

    fn fails(&self, dispatching: bool, item: u8) -> bool {
        self.fails_at == Some(item) && dispatching == self.dispatches
    }
}

impl Model for Setting {
    type State = World;
    type Step = Act;

    fn start(&self) -> World {
        let links = |number: usize| vec![Link::new(); number];
        let child = |links: usize| Child {
            doing: Doing::Idle,
            control: VecDeque::new(),
            order: 0,
            acknowledged: 0,
            pump: Pump::new(links),
            target: None,
            share: ReadEnd::default(),
            read: 0,
            pass: 0,
            made: (0, 0),
            exhausted: false,
            failed: false,
        };
        let mut children = vec![child(1); self.workers];
        children.extend(self.dispatches.then(|| child(self.workers)));
        World {
            main: Main::Between,
            epoch: 0,
            collecting: Collecting::new(self.workers, self.in_order),
            ends: vec![ReadEnd::default(); self.workers],
            held: vec![VecDeque::new(); self.workers],
            waits: false,
            bereaved: false,
            stopped: false,
            delivered: 0,
            seen: 0,
            paused_once: false,
            called: 0,
            thread: None,
            may_die: self.deaths,
            children,
            out: links(self.workers),
            dealt: links(if self.dispatches { self.workers } else { 0 }),
        }
    }

    fn is_over(&self, world: &World) -> bool {
        world.main == Main::Gone && world.children.iter().all(|child| child.doing == Doing::Gone)
    }

    fn steps(&self, world: &World) -> Vec<(Act, After)> {
        let mut steps = Vec::new();
        self.main_steps(world, &mut steps);
        for index in 0..self.children() {
            self.child_steps(world, index, &mut steps);
            if world.may_die && world.children[index].doing != Doing::Gone {
                let mut after = world.clone();
                after.may_die = false;
                after.children[index].doing = Doing::Gone;
                steps.push((Act::Dies(index), Ok(after)));
            }
        }
        if world.may_die && world.main != Main::Gone {
            let mut after = world.clone();
            after.may_die = false;
            after.main = Main::Gone;
            after.thread = None;
            steps.push((Act::MainDies, Ok(after)));
        }
        steps
    }
}

// ---- main ----------------------------------------------------------------------------------------------------------

/// What asking for an item came to.
enum Asked {
    Item((u32, u8)),
    Ended(Ended),
    /// Something was done, but no item is there yet.
    Busy,
    /// Nothing can be done.
    Nothing,
}

impl Setting {
    fn main_steps(&self, world: &World, steps: &mut Vec<(Act, After)>) {
        let mut after = world.clone();
        let mut push = |name, after: After| steps.push((Act::Main(name), after));
        if world.main != Main::Gone && !matches!(world.main, Main::Stopping(_) | Main::Reading(_)) {
            // Commanding and waiting for answers look at who lives.
            if world.children.iter().any(|child| child.doing == Doing::Gone) {
                after.main = Main::Stopping(0);
                return push("learns of a death", Ok(after));
            }
        }
        match world.main {
            Main::Gone => {}
            Main::Between if world.epoch == self.epochs => {
                after.main = Main::Stopping(0);
                push("ends everything", Ok(after));
            }
            Main::Between => {
                after.epoch += 1;
                after.begin_collecting(self);
                after.main = Main::Telling(after.epoch, self.children());
                push("begins an epoch", Ok(after));
            }
            Main::Telling(_, 0) if self.reads_ahead => {
                after.main = Main::Replacing(after.epoch);
                push("has told all", Ok(after));
            }
            Main::Telling(_, 0) => {
                after.main = Main::Reading(false);
                push("has told all", Ok(after));
            }
            Main::Telling(epoch, left) => {
                let child = &mut after.children[left - 1]; // the dispatching process first
                if tell(child, Command::Epoch(epoch)) {
                    after.main = Main::Telling(epoch, left - 1);
                    push("tells a child of the epoch", Ok(after));
                }
            }
            Main::Replacing(epoch) => {
                after.thread = Some(Thread { epoch, holds: None });
                after.main = Main::Reading(false);
                push("begins to read", Ok(after));
            }
            Main::Reading(_) => self.reading(world, steps),
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
                let obeyed = |world: &World| world.children.iter().all(|child| child.acknowledged > 0);
                if obeyed(world) {
                    let window = if paused { 0 } else { self.window };
                    after.set_window(window);
                    after.main = if paused { Main::Paused } else { Main::Reading(false) };
                    push("has all answers", Ok(after));
                } else if self.rules.take_in
                    && let Some(taken) = after.relieve(self)
                {
                    push("takes in, for answers", taken.map(|()| after));
                }
            }
            Main::Calling(left, paused) => {
                if tell(&mut after.children[left - 1], Command::Call) {
                    after.main = Main::Calling(left - 1, paused);
                    push("calls a child", Ok(after));
                }
            }
            Main::Stopping(count) if count == self.children() => {
                // Those that do not obey in time are ended.
                for child in 0..self.children() {
                    after.children[child].doing = Doing::Gone;
                }
                after.main = Main::Gone;
                push("reaps", Ok(after));
            }
            Main::Stopping(count) => {
                let _ = tell(&mut after.children[count], Command::Stop); // or it is terminated
                after.thread = None;
                after.main = Main::Stopping(count + 1);
                push("tells a child to stop", Ok(after));
            }
        }
        self.thread_steps(world, steps);
    }

    fn thread_steps(&self, world: &World, steps: &mut Vec<(Act, After)>) {
        let Some(thread) = world.thread.filter(|thread| thread.holds.is_none()) else { return };
        if world.main == Main::Gone || matches!(world.main, Main::Paused | Main::Calling(_, true)) {
            return;
        }
        let mut after = world.clone();
        if self.rules.late_readers && thread.epoch != world.epoch {
            return; // told to leave; it takes nothing
        }
        let asked = after.ask(self);
        let holds = match asked {
            Ok(Asked::Item(item)) => Some(Ok(item)),
            Ok(Asked::Ended(how)) => Some(Err(how)),
            Ok(Asked::Busy) => None,
            Ok(Asked::Nothing) => return,
            Err(broken) => return steps.push((Act::Thread("reads"), Err(broken))),
        };
        after.thread = Some(Thread { holds, ..thread });
        steps.push((Act::Thread("reads"), Ok(after)));
    }

    fn reading(&self, world: &World, steps: &mut Vec<(Act, After)>) {
        // What the user may do instead of asking for the next item.
        let mut push = |name, after: World| steps.push((Act::Main(name), Ok(after)));
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
        let mut after = world.clone();
        let asked = if self.reads_ahead {
            match after.thread.as_mut().and_then(|thread| thread.holds.take()) {
                Some(Ok(item)) => Ok(Asked::Item(item)),
                Some(Err(how)) => Ok(Asked::Ended(how)),
                None => Ok(Asked::Nothing),
            }
        } else {
            after.ask(self)
        };
        let stepped = match asked {
            Err(broken) => Err(broken),
            Ok(Asked::Item(item)) => after.deliver(self, item).map(|()| after),
            Ok(Asked::Ended(Ended::Over)) => after.complete(self).map(|()| after),
            Ok(Asked::Ended(Ended::Failed)) => {
                after.set_window(0);
                after.thread = None;
                after.main = if after.bereaved { Main::Stopping(0) } else { Main::Between };
                Ok(after)
            }
            Ok(Asked::Busy) => Ok(after),
            Ok(Asked::Nothing) => return,
        };
        steps.push((Act::Main("asks for an item"), stepped));
    }
}

fn tell(child: &mut Child, command: Command) -> bool {
    if child.control.len() == CONTROL || child.doing == Doing::Gone {
        return child.doing == Doing::Gone; // a death is found elsewhere
    }
    if let Some(order) = Control::order_of(command) {
        child.order = order;
    }
    child.control.push_back(command);
    true
}

impl World {
    fn begin_collecting(&mut self, setting: &Setting) {
        self.collecting.begin();
        self.delivered = 0;
        self.seen = 0;
        self.waits = false;
        self.stopped = false;
        for peer in 0..setting.workers {
            self.held[peer].clear();
            self.ends[peer].begin(&mut self.out[peer], Stream::first(self.epoch), setting.window);
        }
    }

    fn set_window(&mut self, window: u64) {
        for (end, link) in self.ends.iter_mut().zip(&mut self.out) {
            end.set_window(link, window);
        }
    }

    fn is_dead(&self) -> bool {
        self.children.iter().any(|child| child.doing == Doing::Gone)
    }

    /// One look of the collector.
    fn ask(&mut self, setting: &Setting) -> Result<Asked, String> {
        let rules = setting.rules;
        if self.stopped {
            return Ok(Asked::Ended(Ended::Over));
        }
        let waiting: usize = self.out.iter().map(|link| link.units.len()).sum();
        let arrived: Vec<bool> = self.ends.iter().zip(&mut self.out).map(|(end, link)| end.look(link, rules)).collect();
        if self.out.iter().map(|link| link.units.len()).sum::<usize>() < waiting {
            return Ok(Asked::Busy); // what is over was dropped
        }
        let ready: Vec<bool> =
            self.held.iter().zip(&arrived).map(|(held, &arrived)| !held.is_empty() || arrived).collect();
        let starves: Vec<bool> = self.out.iter().map(|link| link.starving == self.epoch && rules.take_in).collect();
        let mut collecting = self.collecting.clone();
        let next = collecting.next(|peer| ready[peer], |peer| arrived[peer], |peer| starves[peer]);
        self.collecting = collecting;
        // A death is found while main waits; by then something may have come.
        if self.waits && self.is_dead() && !self.bereaved {
            self.bereaved = true;
            self.waits = false;
            if rules.deaths {
                self.collecting.bereave();
            } else if matches!(next, Next::Deliver(_)) {
                self.stopped = true;
            } else {
                return Ok(Asked::Ended(Ended::Failed));
            }
            return Ok(Asked::Busy);
        }
        match next {
            Next::Deliver(peer) => {
                self.waits = false;
                let taken_in = self.held[peer].pop_front();
                let unit = taken_in.or_else(|| self.out[peer].units.pop_front()).expect("it was ready");
                match unit.kind {
                    Kind::Item(epoch, item) => {
                        self.collecting.advance();
                        if taken_in.is_none() {
                            self.ends[peer].took(&mut self.out[peer]);
                        }
                        Ok(Asked::Item((epoch, item)))
                    }
                    Kind::End => {
                        self.collecting.end(peer);
                        Ok(Asked::Busy)
                    }
                    Kind::Error => Ok(Asked::Ended(Ended::Failed)),
                }
            }
            Next::TakeIn(peer) => {
                self.take_in(peer);
                Ok(Asked::Busy)
            }
            Next::Wait if self.waits => Ok(Asked::Nothing),
            Next::Wait => {
                self.waits = true;
                Ok(Asked::Busy)
            }
            Next::Fail => Ok(Asked::Ended(Ended::Failed)),
            Next::Over => Ok(Asked::Ended(Ended::Over)),
        }
    }

    fn take_in(&mut self, peer: usize) {
        let unit = self.out[peer].units.pop_front().expect("it had arrived");
        if matches!(unit.kind, Kind::Item(..)) {
            self.ends[peer].took_in(&mut self.out[peer]);
        }
        self.held[peer].push_back(unit);
    }

    /// What main does while it waits for answers.
    fn relieve(&mut self, setting: &Setting) -> Option<Result<(), String>> {
        let arrived: Vec<bool> =
            self.ends.iter().zip(&mut self.out).map(|(end, link)| end.look(link, setting.rules)).collect();
        let epoch = self.epoch;
        let starves: Vec<bool> = (0..setting.workers).map(|peer| self.out[peer].starving == epoch).collect();
        if let Some(peer) = self.collecting.to_take_in(|peer| arrived[peer], |peer| starves[peer]) {
            self.take_in(peer);
            return Some(Ok(()));
        }
        let mut relieved = false;
        for peer in (0..setting.workers).filter(|&peer| starves.contains(&true) && !starves[peer]) {
            let (end, link) = (&self.ends[peer], &mut self.out[peer]);
            let relief = end.receiving.relief();
            if link.grant != relief.word() {
                end.tell(link, relief, end.receiving.window().max(1));
                relieved = true;
            }
        }
        relieved.then_some(Ok(()))
    }

    fn deliver(&mut self, setting: &Setting, (epoch, item): (u32, u8)) -> Result<(), String> {
        let expected = setting.expected();
        if epoch != self.epoch {
            return Err(format!("an item of epoch {epoch} is delivered in epoch {}", self.epoch));
        }
        if setting.in_order && expected.get(usize::from(self.delivered)) != Some(&item) {
            return Err(format!("item {item} is delivered as number {} of {expected:?}", self.delivered));
        }
        self.delivered += 1;
        // Out of order: how often each item came, four bits each.
        self.seen += 1 << (4 * u32::from(item));
        let most = expected.iter().filter(|&&other| other == item).count() as u32;
        if (self.seen >> (4 * u32::from(item))) & 15 > most {
            return Err(format!("item {item} is delivered too often"));
        }
        Ok(())
    }

    fn complete(&mut self, setting: &Setting) -> Result<(), String> {
        let expected = setting.expected().len();
        if usize::from(self.delivered) != expected {
            return Err(format!("the epoch ends as if it were whole after {} of {expected} items", self.delivered));
        }
        if setting.fails_at.is_some() && expected > 0 && setting.header.is_none() {
            return Err("an epoch whose graph fails ends as if it were whole".to_owned());
        }
        self.set_window(0);
        self.main = Main::Between;
        Ok(())
    }
}

// ---- children ------------------------------------------------------------------------------------------------------

impl Setting {
    fn child_steps(&self, world: &World, index: usize, steps: &mut Vec<(Act, After)>) {
        let child = &world.children[index];
        if child.doing == Doing::Gone {
            return;
        }
        let mut after = world.clone();
        let mut push = |name, after| steps.push((Act::Child(index, name), Ok(after)));
        if world.main == Main::Gone {
            after.children[index].doing = Doing::Gone;
            return push("ends with main", after);
        }
        // In the graph a child sees orders alone; anywhere else commands go first.
        if child.doing != Doing::InGraph && !child.control.is_empty() {
            after.obey(self, index);
            return push("obeys", after);
        }
        let done = match child.doing {
            Doing::Idle | Doing::Gone => None,
            Doing::Between => after.begin_next_pass(self, index),
            Doing::Pumping => after.pump(self, index),
            Doing::InGraph => after.run_graph(self, index),
        };
        if let Some(name) = done {
            // What touches nothing that others see may as well happen at once.
            while after.is_by_itself(self, index) && after.run_graph(self, index).is_some() {}
            push(name, after);
        }
    }

    fn is_dispatcher(&self, index: usize) -> bool {
        index == self.workers
    }
}

impl World {
    /// Whether the next step of a child is in its graph, with nothing but its own.
    fn is_by_itself(&self, setting: &Setting, index: usize) -> bool {
        let child = &self.children[index];
        let reads_share = setting.dispatches && !setting.is_dispatcher(index);
        child.doing == Doing::InGraph
            && !(child.failed && child.made.1 == 0)
            && (!reads_share || child.made.1 > 0 || child.exhausted)
    }

    fn obey(&mut self, setting: &Setting, index: usize) {
        let child = &mut self.children[index];
        let command = child.control.pop_front().expect("a command waits");
        match Control::obey(command) {
            Step::Begin(epoch) => {
                self.finish(setting, index);
                let child = &mut self.children[index];
                child.pump.begin(Stream::first(epoch));
                child.doing = Doing::Pumping;
                (child.read, child.pass, child.made, child.exhausted, child.failed) = (0, 0, (0, 0), false, false);
            }
            Step::ApplyAndGoOn => {
                child.acknowledged += 1;
                if !setting.rules.calls {
                    child.doing = Doing::Idle;
                }
            }
            Step::End => child.doing = Doing::Gone,
        }
    }

    /// Tells the dispatching process that nothing more of this epoch is wanted.
    fn finish(&mut self, setting: &Setting, index: usize) {
        let child = &mut self.children[index];
        if setting.dispatches && !setting.is_dispatcher(index) && setting.rules.leaving && child.doing != Doing::Idle {
            let epoch = child.pump.stream().epoch();
            let grant = child.share.receiving.finish(epoch);
            let taken = child.share.taken;
            (self.dealt[index].grant, self.dealt[index].count) = (grant.word(), taken);
        }
    }

    /// The links that a child writes to.
    fn outgoing<'a>(setting: &Setting, index: usize, out: &'a mut [Link], dealt: &'a mut [Link]) -> &'a mut [Link] {
        if setting.is_dispatcher(index) { dealt } else { &mut out[index..=index] }
    }

    /// One step of the pump.
    fn pump(&mut self, setting: &Setting, index: usize) -> Option<&'static str> {
        let Self { children, out, dealt, .. } = self;
        let child = &mut children[index];
        let links = Self::outgoing(setting, index, out, dealt);
        let pump = &mut child.pump;
        if let Some((target, unit)) = pump.departing {
            let link = &mut links[target];
            if link.units.len() < setting.ring {
                link.units.push_back(unit);
                if matches!(unit.kind, Kind::Item(..)) {
                    pump.sending[target].sent();
                }
            } else if !matches!(
                pump.sending[target].reader(link.grant),
                Some(Reader::Left | Reader::Ahead | Reader::Done)
            ) {
                return None; // the ring is full
            }
            pump.departing = None;
            return Some("sends");
        }
        if pump.ending {
            let Some(target) = pump.dealing.turn() else {
                if setting.is_dispatcher(index) && setting.rules.passes {
                    child.doing = Doing::Between;
                } else {
                    self.finish(setting, index);
                    self.children[index].doing = Doing::Idle;
                }
                return Some("has ended");
            };
            pump.departing = Some((target, Unit { stream: pump.stream(), kind: Kind::End }));
            pump.dealing.end(target);
            return Some("is about to end");
        }
        let Pump { dealing, sending, .. } = pump;
        let deal = dealing.next(|reader| permit(setting.rules, &mut sending[reader], &links[reader]));
        match deal {
            Deal::WaitFor(_) => None,
            Deal::Nobody => {
                pump.ending = true;
                Some("is wanted no more")
            }
            Deal::To(_) | Deal::Skip(_) => {
                child.target = if let Deal::To(target) = deal { Some(target) } else { None };
                child.doing = Doing::InGraph;
                Some("asks its graph")
            }
        }
    }

    fn begin_next_pass(&mut self, _setting: &Setting, index: usize) -> Option<&'static str> {
        let Self { children, dealt, .. } = self;
        let child = &mut children[index];
        let pump = &mut child.pump;
        let (dealing, sending) = (&pump.dealing, &pump.sending);
        if !dealing.is_asked_again(|reader| sending[reader].reader(dealt[reader].grant).unwrap_or(Reader::Behind)) {
            return None;
        }
        let next = pump.stream().next_pass();
        pump.begin(next);
        child.doing = Doing::Pumping;
        child.read = 0;
        Some("begins once more")
    }

    /// One step in the graph, which ends with an item for the pump, or at its end.
    fn run_graph(&mut self, setting: &Setting, index: usize) -> Option<&'static str> {
        let child = &mut self.children[index];
        let epoch = child.pump.stream().epoch();
        if child.made.1 > 0 {
            child.made.1 -= 1;
            let item = child.made.0;
            self.hand_over(setting, index, Kind::Item(epoch, item));
            return Some("makes an item");
        }
        if child.failed {
            self.hand_over(setting, index, Kind::Error);
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
    fn read_source(&mut self, setting: &Setting, index: usize, step: usize, first: usize) -> &'static str {
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
    fn read_share(&mut self, setting: &Setting, index: usize) -> Option<&'static str> {
        let child = &mut self.children[index];
        let (link, out) = (&mut self.dealt[index], &mut self.out[index]);
        let epoch = child.pump.stream().epoch();
        let wanted = Stream::new(epoch, child.pass + 1);
        if child.share.receiving.stream() != wanted {
            if !setting.rules.passes && child.pass > 0 {
                return None; // nobody will send anything: it waits for ever
            }
            child.share.begin(link, wanted, setting.dispatch_window);
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
            if Control::is_superseded(epoch, child.order) {
                self.finish(setting, index);
                let child = &mut self.children[index];
                child.doing = Doing::Idle;
                self.out[index].starving = 0;
                return Some("gives the epoch up");
            }
            if out.starving != epoch {
                out.starving = epoch;
                return Some("starves");
            }
            return None;
        }
        out.starving = 0;
        match link.units.pop_front().expect("one waits").kind {
            Kind::Item(of, item) => {
                child.share.took(link);
                child.read += 1;
                child.made = (item, setting.outputs[usize::from(item)]);
                debug_assert_eq!(of, epoch);
            }
            Kind::End => {
                child.pass += 1;
                child.read = 0;
                child.exhausted = child.pass >= setting.passes;
            }
            Kind::Error => child.failed = true,
        }
        Some("takes of its share")
    }

    /// Gives the pump what the graph has made, for whose turn it is.
    fn hand_over(&mut self, setting: &Setting, index: usize, kind: Kind) {
        let Self { children, out, dealt, .. } = self;
        let child = &mut children[index];
        let links = Self::outgoing(setting, index, out, dealt);
        let pump = &mut child.pump;
        child.doing = Doing::Pumping;
        let unit = Unit { stream: pump.stream(), kind };
        let Pump { dealing, sending, .. } = pump;
        if kind == Kind::Error {
            pump.ending = true;
            let told = dealing.to_tell(|reader| permit(setting.rules, &mut sending[reader], &links[reader]));
            if let Some(target) = told {
                pump.departing = Some((target, unit));
                pump.dealing.end(target);
            }
            return;
        }
        pump.departing = child.target.map(|target| (target, unit));
        pump.dealing.advance();
    }
}

/// What a reader allows: by its word, or by the old rule, by a count that belonged to no epoch.
fn permit(rules: Rules, sending: &mut Sending, link: &Link) -> Permit {
    if rules.streams {
        return sending.permit(link.grant).expect("nothing is damaged here");
    }
    let sent = Grant::new(sending.stream(), Wish::Items(link.count)).word();
    sending.permit(sent).expect("nothing is damaged here")
}
