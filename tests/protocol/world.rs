//! A loader in small: main, workers and, with dispatching, the dispatching process, over rings of a few units.
//!
//! What is decided is decided by the machines of `torchdata_core::protocol`; here are only memory and processes. `Rules` turns
//! back single ones of their decisions, to what they were before defects were mended.

use std::collections::VecDeque;

use torchdata_core::protocol::{Collecting, Command};

use super::explore::{self, Model};
use super::memory::{Link, Pump, ReadEnd, Unit};

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

/// What a child is doing.
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
    pub control: VecDeque<Command>,
    pub order: u64,
    pub acknowledged: u8,
    pub pump: Pump,
    /// Whom the item is for that the graph makes; None: for nobody.
    pub target: Option<usize>,
    /// Of a worker: its end of the link from the dispatching process.
    pub share: ReadEnd,
    /// Items of the source that it has read in this pass, and passes that it has begun.
    pub read: u8,
    pub pass: u32,
    /// What it has made of an item of the source and not sent yet: which one, how many.
    pub made: (u8, u8),
    /// Whether the source has ended for it.
    pub exhausted: bool,
    pub failed: bool,
}

/// What main is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Main {
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
pub struct Thread {
    pub epoch: u32,
    pub holds: Option<Result<(u32, u8), Ended>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    Over,
    Failed,
}

#[derive(Debug, Clone, Hash)]
pub struct World {
    pub main: Main,
    pub epoch: u32,
    pub collecting: Collecting,
    pub ends: Vec<ReadEnd>,
    pub held: Vec<VecDeque<Unit>>,
    pub waits: bool,
    pub bereaved: bool,
    /// Old rule: the epoch was stopped by a death.
    pub stopped: bool,
    pub delivered: u8,
    pub seen: u32,
    pub paused_once: bool,
    pub called: u8,
    pub thread: Option<Thread>,
    pub may_die: bool,
    pub children: Vec<Child>,
    /// Links of the workers to main, and of the dispatching process to the workers.
    pub out: Vec<Link>,
    pub dealt: Vec<Link>,
}

/// The world after a step, or what the step breaks.
pub type After = explore::After<World>;

/// Who does something, and what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Main(&'static str),
    Thread(&'static str),
    Child(usize, &'static str),
    Dies(usize),
    MainDies,
}

pub const CONTROL: usize = 3;

impl Setting {
    pub fn children(&self) -> usize {
        self.workers + usize::from(self.dispatches)
    }

    /// What a worker makes of the items of its share, in order: (item of the source, place among what was made of it).
    pub fn made_by(&self, worker: usize) -> Vec<u8> {
        let source = 0..self.outputs.len() as u8;
        let share: Vec<u8> = source.filter(|&item| item as usize % self.workers == worker).collect();
        let share = &share[..self.header_of(worker).map_or(share.len(), |most| share.len().min(most.into()))];
        let pass = share.iter().flat_map(|&item| (0..self.outputs[item as usize]).map(move |_| item));
        let pass: Vec<u8> = pass.collect();
        (0..self.passes).flat_map(|_| pass.iter().copied()).collect()
    }

    pub fn header_of(&self, worker: usize) -> Option<u8> {
        self.header.filter(|_| worker < self.leavers.min(self.workers))
    }

    /// What an epoch delivers in strict order.
    pub fn expected(&self) -> Vec<u8> {
        let mut shares: Vec<VecDeque<u8>> = (0..self.workers).map(|worker| self.made_by(worker).into()).collect();
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
