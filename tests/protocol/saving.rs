//! Models how children send snapshots, and how workers relay snapshots of the dispatching process.

use torchdata_core::protocol::{Account, Command, Dispatched, Reader, Share, Snapshot, Stream};

use super::memory::{Kind, Pump, Unit};
use super::shared::Part;
use super::world::{Child, Doing, Setting, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Graph {
    pub epoch: u32,
    pub read: u8,
    pub pass: u32,
    pub made: (u8, u8),
    pub exhausted: bool,
}

pub fn digest((epoch, item): (u32, u8)) -> u64 {
    u64::from(epoch) << 8 | u64::from(item) | 1 << 40
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Resumption {
    pub graph: Option<Graph>,
    /// For each link: the items sent before the snapshot, the number of items to recompute, and these items' checksum.
    pub starts: Vec<(Account, u64, Option<u64>)>,
    pub turn: usize,
    pub share: Account,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ordered {
    pub command: Command,
    /// The epoch's number in the user's program, which determines the items and stays the same if the epoch is resumed.
    pub epoch: u32,
    pub start: Option<Part<Resumption>>,
}

impl Pump {
    /// Counts an item of a link, and updates the checksum of the link's items.
    pub fn count(&mut self, setting: &Setting, link: usize, digest: u64) {
        if setting.saves() {
            self.accounts[link].count(digest);
        }
    }

    pub fn has_recomputed_other_items(&self, link: usize) -> bool {
        let expected = self.expected[link].filter(|_| self.sending[link].outstanding() == 0);
        expected.is_some_and(|expected| expected != self.accounts[link].checksum)
    }

    /// Returns whether the graph has ended too early, before it recomputed all items that a reader already has.
    pub fn lacks_some(&self) -> bool {
        self.sending
            .iter()
            .zip(&*self.expected)
            .any(|(sending, expected)| sending.outstanding() > 0 && expected.is_some())
    }
}

impl Child {
    pub fn begin(&mut self, ordered: &Ordered) {
        self.epoch = ordered.epoch;
        (self.may_save, self.looked) = (true, false);
        (self.share_start, self.share_account) = (Account::default(), Account::default());
        self.relay = None;
        let Some(start) = &ordered.start else { return };
        if let Some(graph) = start.graph {
            (self.epoch, self.read, self.pass) = (graph.epoch, graph.read, graph.pass);
            (self.made, self.exhausted) = (graph.made, graph.exhausted);
        }
        self.share_start = start.share;
        self.pump.dispatch.turn.start_at(start.turn);
        for (link, &(account, again, expected)) in start.starts.iter().enumerate() {
            self.pump.accounts[link] = account;
            self.pump.sending[link].repeat(again);
            self.pump.expected[link] = expected;
        }
    }

    fn graph(&self) -> Graph {
        Graph { epoch: self.epoch, read: self.read, pass: self.pass, made: self.made, exhausted: self.exhausted }
    }

    fn share_at(&self, setting: &Setting) -> Option<Share> {
        match self.share.receiving.stream() {
            _ if !setting.dispatches => Some(Share::default()),
            reached if self.looked || reached.epoch() != self.pump.stream().epoch() => {
                Some(Share { pass: self.pass + 1, account: self.share_start })
            }
            reached if reached.pass() > 1 => None,
            _ if self.pass == 0 => Some(Share { pass: 1, account: self.share_account }),
            _ => Some(Share { pass: 2, account: Account::default() }),
        }
    }
}

impl Setting {
    pub fn saves(&self) -> bool {
        self.snapshots > 0 || self.resumes > 0 || self.restarts
    }

    /// Models how the first worker checks whether the dispatching process has sent a snapshot.
    pub fn looked_into(&self, world: &World, index: usize) -> Option<(&'static str, World)> {
        let child = &world.children[index];
        let first = Stream::first(child.pump.stream().epoch());
        let begins = child.doing == Doing::Pumping && (child.read, child.pass) == (0, 0) && !child.pump.ending;
        let opened = !child.looked && child.share.receiving.stream() >= first;
        if !self.looks || index != 0 || !self.dispatches || !begins || opened {
            return None;
        }
        let mut after = world.clone();
        let World { children, dispatched, .. } = &mut after;
        let (child, link) = (&mut children[index], &mut dispatched[index]);
        if !child.looked {
            child.looked = true;
            child.share.begin(link, first, 0);
            return Some(("looks into its share", after));
        }
        let waits = child.share.look(link);
        let unit = link.units.pop_front().filter(|_| waits)?;
        let Kind::Dispatched(dispatched) = unit.kind else { return None };
        child.relay = Some(dispatched);
        Some(("finds a snapshot to be passed on", after))
    }

    pub fn saved(&self, world: &World, index: usize) -> Option<World> {
        let child = &world.children[index];
        let between = child.doing == Doing::Pumping && child.pump.departing.is_none() && !child.pump.ending;
        if world.snapshots == 0 || !between || !child.may_save {
            return None;
        }
        let stream = child.pump.stream();
        let kind = if self.is_dispatcher(index) {
            let accounts = || (*child.pump.accounts).clone();
            (stream.pass() == 1)
                .then(|| Kind::Dispatched(Dispatched { pass: 1, accounts: accounts(), content: child.graph() }.into()))
        } else {
            let sent = child.pump.accounts[0];
            let share = child.share_at(self);
            share.map(|share| Kind::Saved(Snapshot { sent, share, content: child.graph() }.into()))
        };
        let (links, first) = world.outgoing(self, index);
        let wants = |link: usize| {
            let there = &links[first + link];
            let reader = child.pump.sending[link].reader(there.grant);
            matches!(reader, Some(Reader::Here(_) | Reader::Earlier)) && there.units.len() < self.ring
        };
        let count = child.pump.sending.len();
        let link = (0..count).map(|step| (child.next_link + step) % count).find(|&link| wants(link))?;
        let unit = Unit { stream, kind: kind? };
        let mut after = world.clone();
        let (child, links, first) = after.writer(self, index);
        links[first + link].units.push_back(unit);
        child.next_link = (link + 1) % count;
        child.may_save = false;
        after.snapshots -= 1;
        Some(after)
    }
}

impl World {
    pub fn between_items(&mut self, setting: &Setting, index: usize) {
        let may_save = self.snapshots > 0;
        let child = &mut self.children[index];
        child.may_save = may_save;
        let Some(dispatched) = child.relay.take() else { return };
        let (child, links, first) = self.writer(setting, index);
        let link = &mut links[first];
        if link.units.len() < setting.ring {
            link.units.push_back(Unit { stream: child.pump.stream(), kind: Kind::Dispatched(dispatched) });
        }
    }
}
