//! A loader in small: main, workers and, with dispatching, the dispatching process, over rings of a few units.
//!
//! The machines of `torchdata_core::protocol` decide; here are only memory and processes. `Rules` turns back single
//! ones of their decisions, to what they were before defects were mended.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};

use torchdata_core::protocol::{Account, BETWEEN, Books, Calls, Collecting, Dealt, Obedience, Replacing};

use super::carrying::Carrier;
use super::explore::{self, ByFingerprint, Fingerprint, Model};
use super::going_on::GoingOn;
use super::lanes::Lane;
use super::memory::{Link, Pump, ReadEnd, Unit};
use super::saving::{Graph, Ordered};
use super::shared::{Part, Pool, Shared};

/// The rules of the protocol; all true in the present one.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// A reader leaves units of later streams where they are, and a grant is for one epoch.
    pub streams: bool,
    /// Main takes in what others have while the worker whose turn it is starves.
    pub take_in: bool,
    /// Units that a dead process has sent are delivered, and then its death is an error.
    pub deaths: bool,
    /// A reader for an epoch that was left takes nothing.
    pub late_readers: bool,
    /// A call leaves the epoch running.
    pub calls: bool,
    /// The dispatching process runs once more for workers that read their source again.
    pub passes: bool,
    /// A worker that is done with its epoch, or has left a pass, says so.
    pub leaving: bool,
    /// A snapshot that waits to be passed on is dropped when an epoch begins.
    pub relays_end: bool,
    /// A worker's snapshot says what it has read of its share also before it has opened that, where it goes on.
    pub opening: bool,
    /// A place is that of what the user was given, not of what main has taken.
    pub rewinding: bool,
    /// A place takes a snapshot of the dispatching process that no worker's reading is before.
    pub joining: bool,
    /// A worker's successor also makes the items again that main has received and not delivered yet.
    pub receiving: bool,
    /// With dispatching all children are replaced together.
    pub together: bool,
    /// One that takes a place meets main's function between the same two items.
    pub placing: bool,
    /// A call waits until a worker has made the items again that main has.
    pub holding: bool,
    /// Words from another machine are shown when they arrive, whether or not there is room for the units before them.
    pub words_at_once: bool,
    /// Frames of a process come to its own links alone.
    pub own_frames: bool,
    /// Main hears from another machine that a worker starves.
    pub hears_who_starves: bool,
}

pub const PRESENT: Rules = Rules {
    streams: true,
    take_in: true,
    deaths: true,
    late_readers: true,
    calls: true,
    passes: true,
    leaving: true,
    relays_end: true,
    opening: true,
    rewinding: true,
    joining: true,
    receiving: true,
    together: true,
    placing: true,
    holding: true,
    words_at_once: true,
    own_frames: true,
    hears_who_starves: true,
};

/// Which loader, and what may happen to it.
#[derive(Debug, Clone)]
pub struct Setting {
    pub rules: Rules,
    pub workers: usize,
    pub dispatches: bool,
    /// Workers are on other machines.
    pub carried: bool,
    /// By number of an item of the source: how many items a worker makes of it.
    pub outputs: &'static [u8],
    pub window: u64,
    pub dispatch_window: u64,
    /// An item is as large as what a writer may be ahead.
    pub heavy: bool,
    /// Units that a ring holds.
    pub ring: usize,
    pub epochs: u32,
    /// How often a worker's graph reads its source.
    pub passes: u32,
    /// How many items of its source each of the first `leavers` workers takes in a pass; None: all.
    pub header: Option<u8>,
    pub leavers: usize,
    pub in_order: bool,
    /// The first worker may look into its share for a snapshot before its graph asks for an item of it.
    pub looks: bool,
    /// Main may leave an epoch after any item.
    pub breaks: bool,
    /// Main may halt everybody after any item, once, call everybody then, and go on.
    pub pauses: bool,
    /// Main may call everybody after any item, once.
    pub calls: bool,
    /// So many processes may die, at any moment.
    pub deaths: u8,
    /// Dead children are replaced.
    pub restarts: bool,
    /// Snapshots that children put aside in all, at most.
    pub snapshots: u8,
    /// How often an epoch is left and gone on with, from any place that can be asked for.
    pub resumes: u8,
    /// Deliveries that the books remember beyond those that were not given.
    pub look_back: usize,
    /// Whether the books are told how many items the user was given.
    pub follows: bool,
    /// A thread in main reads one item ahead.
    pub reads_ahead: bool,
    /// The number of the source's item at which the graph fails: of a worker, or where items are dispatched, of that
    /// process.
    pub fails_at: Option<u8>,
    /// The places of main that were checked.
    pub checked: RefCell<HashSet<Fingerprint, ByFingerprint>>,
}

/// The activity of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doing {
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
pub struct Child {
    pub doing: Doing,
    pub control: VecDeque<Ordered>,
    pub order: u64,
    pub obedience: Obedience,
    /// Whether it has acknowledged main's call, and behind how many items: words that outlive it.
    pub acknowledged: Option<u64>,
    /// How often it has applied the function.
    pub applied: u8,
    /// Behind how many items it is to apply it by itself.
    pub due: Option<u64>,
    pub pump: Pump,
    /// The worker whose share the graph's item is, and whether it goes nowhere.
    pub target: usize,
    pub skips: bool,
    /// A worker's end of the link from the dispatching process.
    pub share: ReadEnd,
    /// Whether it has looked into its share, and asked for nothing of it yet.
    pub looked: bool,
    /// Items of the source that it has read in this pass, and passes that it has begun.
    pub read: u8,
    pub pass: u32,
    /// The items that it has made of one of the source and not sent yet: which one, how many.
    pub made: (u8, u8),
    /// Whether the source has ended for it.
    pub exhausted: bool,
    pub failed: bool,
    /// The epoch whose items the graph makes.
    pub epoch: u32,
    /// Whether something has happened since the last snapshot.
    pub may_save: bool,
    /// The link that gets the next snapshot.
    pub next_link: usize,
    /// The part of its share that it has read in this pass, and had read at the place from which it goes on.
    pub share_account: Account,
    pub share_start: Account,
    /// The dispatching process's snapshot that waits to be passed on.
    pub relay: Option<Part<Dealt<Graph>>>,
}

impl Child {
    /// A worker has one link; the dispatching process has one to each worker.
    pub fn new(links: usize, dispatches: bool) -> Self {
        Self {
            doing: Doing::Idle,
            control: VecDeque::new(),
            order: 0,
            obedience: Obedience::new(dispatches),
            acknowledged: None,
            applied: 0,
            due: None,
            pump: Pump::new(links),
            target: 0,
            skips: false,
            share: ReadEnd::default(),
            looked: false,
            read: 0,
            pass: 0,
            made: (0, 0),
            exhausted: false,
            failed: false,
            epoch: 0,
            may_save: false,
            next_link: 0,
            share_account: Account::default(),
            share_start: Account::default(),
            relay: None,
        }
    }

    /// How many items it has made in this epoch, with those of the processes before it. Where no epoch runs, it is
    /// behind them all.
    pub fn place(&self) -> u64 {
        let made: u64 = self.pump.accounts.iter().map(|account| account.items).sum();
        let waits = self.pump.departing.as_ref().is_some_and(|(_, unit)| unit.item().is_some());
        let passed = u64::from(self.pump.stream().pass().saturating_sub(1)) << 32;
        if self.obedience.runs() { passed + made + u64::from(waits) } else { BETWEEN }
    }

    /// Has left the epoch, or has come to its end.
    pub fn rest(&mut self) {
        self.applied += u8::from(self.due.take().is_some());
        self.doing = Doing::Idle;
        self.obedience.leave();
    }
}

/// The activity of main.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Main {
    /// About to begin an epoch: its collector has begun, and so many children are to be told.
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
pub struct Thread {
    pub epoch: u32,
    pub holds: Option<Result<(u32, u8), Ended>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    Over,
    Failed,
}

/// The parts of a world that few steps change, in one: so a step that changes none copies one reference.
#[derive(Debug, Clone, Hash)]
pub struct Kept {
    pub calls: Part<Calls>,
    /// By child: behind how many items of this epoch the function was met first.
    pub met: Part<Vec<Option<u64>>>,
    /// By child: how many items main had of it when it was put into its place.
    pub had: Part<Vec<u64>>,
    pub books: Part<Books<Graph>>,
    /// Books that forget nothing.
    pub all: Part<Books<Graph>>,
    /// Where the epoch that is being begun goes on.
    pub going_on: Option<Part<GoingOn>>,
    pub replacing: Part<Replacing>,
    /// By child, a bit each: told to begin the epoch when it took a place.
    pub told: u8,
}

/// The links of workers on other machines; there are none if there are no such workers.
#[derive(Debug, Clone, Hash)]
pub struct Elsewhere {
    /// Their own copies of the links to main, and who carries between the copies.
    pub far: Links,
    pub carriers: Shared<Carrier, WORKERS>,
    /// And the dispatching process's own copies of the links to them, with who carries those.
    pub dealing: Links,
    pub lanes: Shared<Lane, WORKERS>,
}

/// The most workers of any loader here.
pub const WORKERS: usize = 3;
pub type Children = Shared<Child, { WORKERS + 1 }>;
pub type Links = Shared<Link, WORKERS>;

#[derive(Debug, Clone, Hash)]
pub struct World {
    pub main: Main,
    /// As the streams count: an epoch that is gone on with counts once more.
    pub number: u32,
    pub epoch: u32,
    pub collecting: Part<Collecting>,
    pub ends: Part<Vec<ReadEnd>>,
    pub held: Part<Vec<VecDeque<Unit>>>,
    pub waits: bool,
    pub has_died: bool,
    /// Old rule: the epoch was stopped by a death.
    pub stopped: bool,
    pub delivered: u8,
    pub seen: u32,
    pub paused_once: bool,
    pub called: u8,
    pub thread: Option<Thread>,
    pub deaths: u8,
    /// Snapshots that may still be taken, and resumptions.
    pub snapshots: u8,
    pub resumes: u8,
    /// Items that the user was given in this run of the epoch.
    pub given: u8,
    /// An act of a child that breaks a rule.
    pub broken: Option<&'static str>,
    pub kept: Part<Kept>,
    pub children: Children,
    /// Links of the workers to main, and of the dispatching process to the workers.
    pub out: Links,
    pub dealt: Links,
    pub elsewhere: Part<Elsewhere>,
}

/// The parts of all worlds of an exploration.
#[derive(Default)]
pub struct Parts {
    collecting: Pool<Collecting>,
    ends: Pool<Vec<ReadEnd>>,
    held: Pool<Vec<VecDeque<Unit>>>,
    kept: Pool<Kept>,
    children: Pool<Child>,
    links: Pool<Link>,
    elsewhere: Pool<Elsewhere>,
}

/// The world after a step, or what the step breaks.
pub type After = explore::After<World>;
/// Takes each step and the world after it.
pub type Take<'a> = explore::Take<'a, Act, World>;

/// An act, and the process that does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Main(&'static str),
    Thread(&'static str),
    Child(usize, &'static str),
    Carrier(usize, &'static str),
    Dies(usize),
    HostDies(usize),
    MainDies,
}

pub const CONTROL: usize = 3;

impl Setting {
    pub fn children(&self) -> usize {
        self.workers + usize::from(self.dispatches)
    }

    pub fn fresh_child(&self, index: usize) -> Child {
        let dispatches = self.is_dispatcher(index);
        Child::new(if dispatches { self.workers } else { 1 }, dispatches)
    }

    pub fn fresh_children(&self) -> Children {
        (0..self.children()).map(|index| self.fresh_child(index)).collect()
    }

    /// The items of the source that are a worker's in a pass, as numbers.
    pub fn share_of(&self, worker: usize) -> Vec<u8> {
        (0..self.outputs.len() as u8).filter(|&item| usize::from(item) % self.workers == worker).collect()
    }

    /// The items that a worker makes of its share in a pass, from one of its items on.
    pub fn made_in(&self, worker: usize, from: usize) -> Vec<u8> {
        let share = self.share_of(worker);
        let most = self.header_of(worker).map_or(share.len(), |most| share.len().min(most.into()));
        let made = share[from.min(most)..most]
            .iter()
            .map(|&item| vec![item; self.outputs.get(usize::from(item)).copied().unwrap_or_default().into()]);
        made.flatten().collect()
    }

    /// The items that a worker makes of its shares, in order.
    pub fn made_by(&self, worker: usize) -> Vec<u8> {
        (0..self.passes).flat_map(|_| self.made_in(worker, 0)).collect()
    }

    pub fn header_of(&self, worker: usize) -> Option<u8> {
        self.header.filter(|_| worker < self.leavers.min(self.workers))
    }

    /// The items that an epoch delivers, in strict order.
    pub fn expected(&self) -> Vec<u8> {
        let made = |worker| self.made_by(worker).into();
        let mut shares: Vec<VecDeque<u8>> = (0..self.workers).map(made).collect();
        let mut expected = Vec::new();
        while shares.iter().any(|share| !share.is_empty()) {
            shares.iter_mut().for_each(|share| expected.extend(share.pop_front()));
        }
        expected
    }

    pub fn fails(&self, dispatching: bool, item: u8) -> bool {
        self.fails_at == Some(item) && dispatching == self.dispatches
    }
}

impl Model for Setting {
    type State = World;
    type Step = Act;
    type Parts = Parts;

    fn start(&self) -> World {
        let links = |number: usize| (0..number).map(|_| Link::new()).collect();
        let elsewhere = Elsewhere {
            far: links(if self.carried { self.workers } else { 0 }),
            carriers: self.fresh_carriers(),
            dealing: links(if self.carried && self.dispatches { self.workers } else { 0 }),
            lanes: self.fresh_lanes(),
        };
        let kept = Kept {
            calls: Calls::new(self.children()).into(),
            met: vec![None; self.children()].into(),
            had: vec![0; self.children()].into(),
            books: Books::remembering(self.workers, self.look_back, self.look_back).into(),
            all: Books::new(self.workers).into(),
            going_on: None,
            replacing: Replacing::new(self.workers, self.dispatches).into(),
            told: 0,
        };
        World {
            main: Main::Between,
            number: 0,
            epoch: 0,
            collecting: Collecting::new(self.workers, self.in_order).into(),
            ends: vec![ReadEnd::default(); self.workers].into(),
            held: vec![VecDeque::new(); self.workers].into(),
            waits: false,
            has_died: false,
            stopped: false,
            delivered: 0,
            seen: 0,
            paused_once: false,
            called: 0,
            thread: None,
            deaths: self.deaths,
            snapshots: self.snapshots,
            resumes: self.resumes,
            given: 0,
            broken: None,
            kept: kept.into(),
            children: self.fresh_children(),
            out: links(self.workers),
            dealt: links(if self.dispatches { self.workers } else { 0 }),
            elsewhere: elsewhere.into(),
        }
    }

    fn share(parts: &mut Parts, world: &mut World) {
        parts.collecting.share(&mut world.collecting);
        parts.ends.share(&mut world.ends);
        parts.held.share(&mut world.held);
        parts.kept.share(&mut world.kept);
        parts.children.share_all(&mut world.children);
        parts.links.share_all(&mut world.out);
        parts.links.share_all(&mut world.dealt);
        parts.elsewhere.share(&mut world.elsewhere);
    }

    fn is_over(&self, world: &World) -> bool {
        world.main == Main::Gone && world.children.iter().all(|child| child.doing == Doing::Gone)
    }

    fn steps(&self, world: &World, take: &mut Take<'_>) {
        if let Err(broken) = self.check_places(world) {
            take(Act::Main("is asked for its state"), Err(broken));
        }
        self.main_steps(world, take);
        for index in 0..self.children() {
            self.child_steps(world, index, take);
            self.carrier_steps(world, index, take);
            self.lane_steps(world, index, take);
            if world.deaths > 0 && world.children[index].doing != Doing::Gone {
                let mut after = world.clone();
                after.deaths -= 1;
                after.children[index].doing = Doing::Gone;
                take(Act::Dies(index), Ok(after));
            }
        }
        if world.deaths > 0 && world.main != Main::Gone && !self.restarts {
            let mut after = world.clone();
            after.deaths = 0;
            after.main = Main::Gone;
            after.thread = None;
            take(Act::MainDies, Ok(after));
        }
    }
}
