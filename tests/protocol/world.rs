//! Models a small loader with workers and, optionally, a dispatching process. Each link holds only a few messages.
//!
//! The model simulates shared memory and processes, but runs the real state machines (`torchdata_core::protocol`).

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};

use torchdata_core::protocol::{Account, Books, Collecting, CommandState, Dispatched, Replacing};

use super::carrying::Carrier;
use super::explore::{self, ByFingerprint, Fingerprint, Model};
use super::lanes::Lane;
use super::memory::{Link, Pump, ReadEnd, Unit};
use super::resumed::Resumed;
use super::saving::{Graph, Ordered};
use super::shared::{Part, Pool, Shared};

#[derive(Debug, Clone, Default)]
pub struct Setting {
    pub workers: usize,
    pub dispatches: bool,
    pub carried: bool,
    /// The number of items that the graph computes from each source item.
    pub outputs: &'static [u8],
    pub window: u64,
    pub dispatch_window: u64,
    /// Whether each item is so large that a worker may not compute a second item in advance.
    pub heavy: bool,
    pub ring: usize,
    pub epochs: u32,
    pub passes: u32,
    /// The number of source items that the first `leavers` workers read in each iteration; None for all items.
    pub header: Option<u8>,
    pub leavers: usize,
    pub in_order: bool,
    /// Whether the first worker may look for a snapshot from the dispatching process.
    pub looks: bool,
    /// Whether the main process may leave an epoch after any item.
    pub breaks: bool,
    /// Whether the main process may once pause all children, call a function in them, and resume them.
    pub pauses: bool,
    /// Whether the main process may once call a function in all children, after any item.
    pub calls: bool,
    /// The number of processes that may exit, each at any moment.
    pub exits: u8,
    pub restarts: bool,
    /// The number of snapshots that all children together may send.
    pub snapshots: u8,
    /// How often the main process may leave an epoch and resume it from a saved position.
    pub resumes: u8,
    /// The number of deliveries that `Books` keeps.
    pub look_back: usize,
    /// Whether the main process knows the number of items that the user has received.
    pub follows: bool,
    /// Whether a thread in the main process reads one item ahead of the user.
    pub reads_ahead: bool,
    /// The graph of a child fails when it reads this source item.
    pub fails_at: Option<u8>,
    pub checked: RefCell<HashSet<Fingerprint, ByFingerprint>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doing {
    Idle,
    Pumping,
    /// The child runs its graph.
    InGraph,
    /// The dispatching process has completed an iteration, and waits for the next iteration.
    Between,
    Exited,
}

#[derive(Debug, Clone, Hash)]
pub struct Child {
    pub doing: Doing,
    pub control: VecDeque<Ordered>,
    pub order: u64,
    pub command_state: CommandState,
    pub acknowledged: bool,
    pub applied: u8,
    pub pump: Pump,
    /// The link over which the child will send the next item.
    pub target: usize,
    pub skips: bool,
    pub share: ReadEnd,
    pub looked: bool,
    /// The number of source items that the child has read in the current iteration.
    pub read: u8,
    /// The number of completed iterations.
    pub pass: u32,
    /// The index of the source item that was read last, and the number of its outputs that are not computed yet.
    pub made: (u8, u8),
    pub exhausted: bool,
    pub failed: bool,
    pub epoch: u32,
    /// Whether the child has changed since its last snapshot.
    pub may_save: bool,
    pub next_link: usize,
    /// The number and the checksum of the dispatched items that the worker has read in the current iteration.
    pub share_account: Account,
    /// The number and the checksum of the items that were dispatched before the position where the epoch resumes.
    pub share_start: Account,
    pub relay: Option<Part<Dispatched<Graph>>>,
}

impl Child {
    pub fn new(links: usize, dispatches: bool) -> Self {
        Self {
            doing: Doing::Idle,
            control: VecDeque::new(),
            order: 0,
            command_state: CommandState::new(dispatches),
            acknowledged: false,
            applied: 0,
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

    /// Returns how many items this child and its predecessors have computed.
    pub fn position(&self) -> u64 {
        let made: u64 = self.pump.accounts.iter().map(|account| account.items).sum();
        let waits = self.pump.departing.as_ref().is_some_and(|(_, unit)| unit.item().is_some());
        let passed = u64::from(self.pump.stream().pass().saturating_sub(1)) << 32;
        if self.command_state.runs() { passed + made + u64::from(waits) } else { u64::MAX }
    }

    pub fn rest(&mut self) {
        self.doing = Doing::Idle;
        self.command_state.leave();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Main {
    /// The main process sends the command to begin epoch `.0`, and `.1` children have not received the command yet.
    Announcing(u32, usize),
    /// The main process replaces the thread that reads ahead, because a new epoch begins.
    Replacing(u32),
    /// The main process requests the next item.
    Reading(bool),
    Paused,
    /// The main process must call a function in `.0` remaining children. `.1` is true if the loader is paused.
    Calling(usize, bool),
    Between,
    /// The main process stops the children. `.0` is the number of children that have already received the command.
    Stopping(usize),
    Exited,
}

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

/// Parts of a simulated loader's state that most of its steps leave unchanged.
#[derive(Debug, Clone, Hash)]
pub struct Kept {
    /// For each child, the number of items that had arrived before a new process replaced the child.
    pub had: Part<Vec<u64>>,
    pub books: Part<Books<Graph>>,
    /// The record of all deliveries, whereas `books` drops old deliveries.
    pub all: Part<Books<Graph>>,
    pub resumed: Option<Part<Resumed>>,
    pub replacing: Part<Replacing>,
    /// A bit mask of the children that already have the epoch's command, because they were started as replacements.
    pub announced: u8,
}

#[derive(Debug, Clone, Hash)]
pub struct Elsewhere {
    /// The copies of the links to the main process that workers on other machines write to.
    pub far: Links,
    pub carriers: Shared<Carrier, WORKERS>,
    /// The copies of the links to remote workers that the dispatching process writes to.
    pub dispatch: Links,
    /// The network connections from the dispatching process to workers on other machines.
    pub lanes: Shared<Lane, WORKERS>,
}

pub const WORKERS: usize = 3;
pub type Children = Shared<Child, { WORKERS + 1 }>;
pub type Links = Shared<Link, WORKERS>;

#[derive(Debug, Clone, Hash)]
pub struct World {
    pub main: Main,
    /// The number that identifies the epoch in `Stream`, and that changes when the epoch is resumed.
    pub number: u32,
    pub epoch: u32,
    pub collecting: Part<Collecting>,
    pub ends: Part<Vec<ReadEnd>>,
    pub held: Part<Vec<VecDeque<Unit>>>,
    pub waits: bool,
    pub has_exited: bool,
    pub delivered: u8,
    pub seen: u32,
    pub paused_once: bool,
    pub called: u8,
    pub thread: Option<Thread>,
    pub exits: u8,
    pub snapshots: u8,
    pub resumes: u8,
    pub received: u8,
    pub broken: Option<&'static str>,
    pub kept: Part<Kept>,
    pub children: Children,
    /// The links from the workers to the main process.
    pub out: Links,
    /// The links from the dispatching process to the workers.
    pub dispatched: Links,
    pub elsewhere: Part<Elsewhere>,
}

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

pub type After = explore::After<World>;
pub type Take<'a> = explore::Take<'a, Act, World>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Main(&'static str),
    Thread(&'static str),
    Child(usize, &'static str),
    Carrier(usize, &'static str),
    Exits(usize),
    HostExits(usize),
    MainExits,
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

    pub fn share_of(&self, worker: usize) -> Vec<u8> {
        (0..self.outputs.len() as u8).filter(|&item| usize::from(item) % self.workers == worker).collect()
    }

    pub fn made_in(&self, worker: usize, from: usize) -> Vec<u8> {
        let share = self.share_of(worker);
        let most = self.header_of(worker).map_or(share.len(), |most| share.len().min(most.into()));
        let made = share[from.min(most)..most]
            .iter()
            .map(|&item| vec![item; self.outputs.get(usize::from(item)).copied().unwrap_or_default().into()]);
        made.flatten().collect()
    }

    pub fn made_by(&self, worker: usize) -> Vec<u8> {
        (0..self.passes).flat_map(|_| self.made_in(worker, 0)).collect()
    }

    pub fn header_of(&self, worker: usize) -> Option<u8> {
        self.header.filter(|_| worker < self.leavers.min(self.workers))
    }

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
            dispatch: links(if self.carried && self.dispatches { self.workers } else { 0 }),
            lanes: self.fresh_lanes(),
        };
        let kept = Kept {
            had: vec![0; self.children()].into(),
            books: Books::remembering(self.workers, self.look_back, self.look_back).into(),
            all: Books::new(self.workers).into(),
            resumed: None,
            replacing: Replacing::new(self.workers, self.dispatches).into(),
            announced: 0,
        };
        World {
            main: Main::Between,
            number: 0,
            epoch: 0,
            collecting: Collecting::new(self.workers, self.in_order).into(),
            ends: vec![ReadEnd::default(); self.workers].into(),
            held: vec![VecDeque::new(); self.workers].into(),
            waits: false,
            has_exited: false,
            delivered: 0,
            seen: 0,
            paused_once: false,
            called: 0,
            thread: None,
            exits: self.exits,
            snapshots: self.snapshots,
            resumes: self.resumes,
            received: 0,
            broken: None,
            kept: kept.into(),
            children: self.fresh_children(),
            out: links(self.workers),
            dispatched: links(if self.dispatches { self.workers } else { 0 }),
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
        parts.links.share_all(&mut world.dispatched);
        parts.elsewhere.share(&mut world.elsewhere);
    }

    fn is_over(&self, world: &World) -> bool {
        world.main == Main::Exited && world.children.iter().all(|child| child.doing == Doing::Exited)
    }

    fn steps(&self, world: &World, take: &mut Take<'_>) {
        if let Err(broken) = self.check_positions(world) {
            take(Act::Main("is asked for its state"), Err(broken));
        }
        self.main_steps(world, take);
        for index in 0..self.children() {
            self.child_steps(world, index, take);
            self.carrier_steps(world, index, take);
            self.lane_steps(world, index, take);
            if world.exits > 0 && world.children[index].doing != Doing::Exited {
                let mut after = world.clone();
                after.exits -= 1;
                after.children[index].doing = Doing::Exited;
                take(Act::Exits(index), Ok(after));
            }
        }
        if world.exits > 0 && world.main != Main::Exited && !self.restarts {
            let mut after = world.clone();
            after.exits = 0;
            after.main = Main::Exited;
            after.thread = None;
            take(Act::MainExits, Ok(after));
        }
    }
}
