//! Models workers that each run several shards. All shards of a worker send their items over the same link.
//!
//! The model runs the same state machines (`torchdata_core::protocol`) as real processes.

mod explored;

use std::collections::VecDeque;

use torchdata_core::protocol::{
    Account, Books, Choice, Collecting, Dispatch, Grant, Judgement, Next, Reader, Receiving, Replacing, Sending, Share,
    Snapshot, Stream,
};

use super::explore::{Model, Take};

#[derive(Debug, Clone, Default)]
struct Shards {
    workers: usize,
    shards: usize,
    /// The number of items that each shard computes. Worker `p % workers` runs the shard `p`.
    items: &'static [u8],
    window: u64,
    ring: usize,
    in_order: bool,
    epochs: u32,
    breaks: bool,
    exits: u8,
    snapshots: u8,
    /// How often an epoch is left and resumed in new processes.
    resumes: u8,
    /// Whether the main process stores messages that arrive before it needs items of their shard.
    keeps: bool,
    counts: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Kind {
    Item(u8),
    End,
    Saved(Snapshot<u8>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Unit {
    stream: Stream,
    shard: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Hash)]
struct Link {
    units: VecDeque<Unit>,
    grant: u64,
    receiving: Receiving,
}

#[derive(Debug, Clone, Hash, Default)]
struct Strand {
    account: Account,
    /// The number of items that the shard must still recompute, and (`expected`) the checksum of these items.
    outstanding: u64,
    expected: u64,
    made: u8,
}

#[derive(Debug, Clone, Hash)]
struct Start {
    stream: Stream,
    turn: usize,
    strands: Vec<Strand>,
}

#[derive(Debug, Clone, Hash)]
struct Worker {
    has_exited: bool,
    order: Option<Start>,
    runs: bool,
    dispatch: Dispatch,
    sending: Sending,
    strands: Vec<Strand>,
    departing: Option<Unit>,
    ending: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Main {
    Announcing(usize),
    Reading,
    Exited,
}

#[derive(Debug, Clone, Hash)]
struct World {
    main: Main,
    epoch: u32,
    /// The number that identifies the epoch in `Stream`, and that changes when the epoch is resumed.
    number: u32,
    links: Vec<Link>,
    workers: Vec<Worker>,
    starts: Vec<Start>,
    collecting: Collecting,
    books: Books<u8>,
    replacing: Replacing,
    held: Vec<VecDeque<Unit>>,
    received: Vec<u8>,
    exits: u8,
    snapshots: u8,
    resumes: u8,
}

type Act = (&'static str, usize);

fn digest(peer: usize, item: u8) -> u64 {
    1 << 20 | (peer as u64) << 8 | u64::from(item)
}

fn account_of(peer: usize, items: u8) -> Account {
    let mut account = Account::default();
    (0..items).for_each(|item| account.count(digest(peer, item)));
    account
}

impl Shards {
    fn peers(&self) -> usize {
        self.workers * self.shards
    }

    fn fresh_worker(&self) -> Worker {
        Worker {
            has_exited: false,
            order: None,
            runs: false,
            dispatch: Dispatch::new(self.shards),
            sending: Sending::default(),
            strands: vec![Strand::default(); self.shards],
            departing: None,
            ending: false,
        }
    }

    fn expected(&self, received: usize) -> Option<usize> {
        let rounds = (0..).take_while(|&round| self.items.iter().any(|&items| items > round));
        rounds.flat_map(|round| (0..self.peers()).filter(move |&peer| self.items[peer] > round)).nth(received)
    }

    fn start(&self, world: &World, accounts: &[Account], worker: usize, turn: usize) -> Start {
        let positions = world.books.positions_at(accounts.to_vec());
        let peers = (0..self.shards).map(|shard| worker + shard * self.workers);
        let strands = peers.clone().map(|peer| {
            let snapshot = positions[peer].snapshot;
            let sent = snapshot.map(|one| one.sent).unwrap_or_default();
            let outstanding = positions[peer].received.items - sent.items;
            let made = snapshot.map_or(0, |one| one.content);
            Strand { account: sent, outstanding, expected: positions[peer].received.checksum, made }
        });
        let turn = peers.clone().position(|peer| peer >= turn).unwrap_or(0);
        Start { stream: Stream::first(world.number), turn, strands: strands.collect() }
    }

    fn begin_epoch(&self, world: &mut World, resumed: Option<(Vec<Account>, usize)>) {
        world.number += 1;
        let (accounts, turn) = resumed.clone().unwrap_or((vec![Account::default(); self.peers()], 0));
        let snapshots: Vec<Option<Snapshot<u8>>> = match &resumed {
            Some((accounts, _)) => {
                world.books.positions_at(accounts.clone()).iter().map(|position| position.snapshot.cloned()).collect()
            }
            None => vec![None; self.peers()],
        };
        world.books.begin(&accounts);
        world.books.begin_at(turn);
        world.collecting.turn.start_at(turn);
        world.replacing.begin();
        for (peer, snapshot) in snapshots.into_iter().enumerate() {
            snapshot.into_iter().for_each(|snapshot| drop(world.books.keep(peer, snapshot, None)));
        }
        world.held.iter_mut().for_each(VecDeque::clear);
        world.received = accounts.iter().map(|account| account.items as u8).collect();
        for link in &mut world.links {
            link.grant = link.receiving.begin(Stream::first(world.number), self.window).word();
        }
        world.starts = (0..self.workers).map(|worker| self.start(world, &accounts, worker, turn)).collect();
        world.main = Main::Announcing(0);
    }

    fn renew(&self, world: &mut World, worker: usize, start: Start) {
        let link = &mut world.links[worker];
        link.units.clear();
        link.grant = link.receiving.begin(Stream::first(world.number), self.window).word();
        world.workers[worker] = Worker { order: Some(start), ..self.fresh_worker() };
    }

    fn keep_for_later(&self, world: &mut World, worker: usize, unit: Unit) {
        let link = &mut world.links[worker];
        if self.counts && matches!(unit.kind, Kind::Item(_)) {
            link.receiving.take();
            link.grant = link.receiving.one_more().word();
        }
        world.held[worker + unit.shard * self.workers].push_back(unit);
    }

    /// Replaces all workers that have exited, and returns whether any worker had exited.
    fn replace_processes(&self, world: &mut World) -> bool {
        let has_exited = |worker: &usize| world.workers[*worker].has_exited && !world.replacing.rests(*worker);
        let exited: Vec<usize> = (0..self.workers).filter(has_exited).collect();
        for &worker in &exited {
            for unit in std::mem::take(&mut world.links[worker].units) {
                if world.links[worker].receiving.judge(unit.stream) == Judgement::Take {
                    self.keep_for_later(world, worker, unit);
                }
            }
        }
        let of = |peer: usize| exited.contains(&(peer % self.workers));
        for peer in (0..self.peers()).filter(|&peer| of(peer)) {
            for unit in std::mem::take(&mut world.held[peer]) {
                match unit.kind {
                    Kind::Saved(snapshot) => drop(world.books.keep(peer, snapshot, Some(0))),
                    _ => world.held[peer].push_back(unit),
                }
            }
        }
        let received = |peer: usize| {
            let mut account = world.books.taken(peer);
            for unit in &world.held[peer] {
                if let Kind::Item(item) = unit.kind {
                    account.count(digest(peer, item));
                }
            }
            account
        };
        let accounts: Vec<Account> = (0..self.peers()).map(received).collect();
        let has_ended = |peer: usize| {
            world.collecting.turn.is_ended(peer) || world.held[peer].iter().any(|unit| unit.kind == Kind::End)
        };
        let ended: Vec<bool> = (0..self.workers)
            .map(|worker| (0..self.shards).all(|shard| has_ended(worker + shard * self.workers)))
            .collect();
        for worker in world.replacing.wanted(&exited, &ended) {
            // The argument 0 makes a new worker begin with its first shard.
            let start = self.start(world, &accounts, worker, 0);
            self.renew(world, worker, start);
        }
        !exited.is_empty()
    }

    fn check_state(&self, world: &World) -> Result<(), String> {
        let (positions, turn) = world.books.positions(0).ok_or("there is no state")?;
        for (peer, position) in positions.iter().enumerate() {
            if position.received != account_of(peer, world.received[peer]) {
                return Err("a state is not at the user's position".to_owned());
            }
            if let Some(one) = position.snapshot
                && (one.sent.items > position.received.items || one.sent != account_of(peer, one.content))
            {
                return Err("a state has the snapshot of another position or shard".to_owned());
            }
        }
        let expected = self.expected(world.received.iter().map(|&received| usize::from(received)).sum());
        // If the shard at `turn` has ended, a later shard provides the next item.
        let passes = |from: usize, to: usize| {
            let peers = (0..self.peers()).map(|step| (from + step) % self.peers()).take_while(|&peer| peer != to);
            peers.into_iter().all(|peer| world.received[peer] == self.items[peer])
        };
        match expected {
            Some(next) if self.in_order && !passes(turn, next) => Err("a state has another turn".to_owned()),
            _ => Ok(()),
        }
    }

    fn read(&self, world: &World) -> Option<Result<World, String>> {
        let mut after = world.clone();
        for link in &mut after.links {
            let receiving = &link.receiving;
            while link.units.front().is_some_and(|unit| receiving.judge(unit.stream) == Judgement::Drop) {
                link.units.pop_front();
            }
        }
        let World { collecting, links, held, .. } = &mut after;
        let arrived = |peer: usize| {
            let Link { units, receiving, .. } = &links[peer % self.workers];
            units.front().is_some_and(|unit| receiving.judge(unit.stream) == Judgement::Take)
        };
        let next = collecting.next(|peer| !held[peer].is_empty() || arrived(peer), arrived, |_| false);
        let peer = match next {
            Next::Deliver(peer) => peer,
            Next::Wait if self.replace_processes(&mut after) => return Some(Ok(after)),
            Next::Wait => {
                let units = |world: &World| -> usize { world.links.iter().map(|link| link.units.len()).sum() };
                return (units(&after) < units(world)).then_some(Ok(after)); // dropping messages counts as progress
            }
            Next::Over => {
                if after.received != self.items {
                    return Some(Err(format!("the epoch ends as if it were complete after {:?}", after.received)));
                }
                if after.epoch == self.epochs {
                    after.main = Main::Exited;
                } else {
                    after.epoch += 1;
                    self.begin_epoch(&mut after, None);
                }
                return Some(Ok(after));
            }
            Next::TakeIn(_) | Next::Fail => return Some(Err(format!("the next step of the main process is {next:?}"))),
        };
        let worker = peer % self.workers;
        let kept = after.held[peer].pop_front();
        let is_new = kept.is_none();
        let unit = kept.or_else(|| after.links[worker].units.pop_front()).expect("it was ready");
        if self.keeps && worker + unit.shard * self.workers != peer {
            self.keep_for_later(&mut after, worker, unit);
            return Some(Ok(after));
        }
        Some(self.deliver(&mut after, peer, unit, is_new).map(|()| after))
    }

    fn deliver(&self, world: &mut World, peer: usize, unit: Unit, is_new: bool) -> Result<(), String> {
        match unit.kind {
            Kind::End => {
                world.collecting.turn.end(peer);
                world.books.end(peer);
            }
            Kind::Saved(snapshot) => drop(world.books.keep(peer, snapshot, Some(0))),
            Kind::Item(item) => {
                let number = world.received.iter().map(|&received| usize::from(received)).sum();
                let owner = peer % self.workers + unit.shard * self.workers;
                if (owner, item) != (peer, world.received[peer]) || self.in_order && self.expected(number) != Some(peer)
                {
                    return Err(format!("item {item} of peer {owner} is delivered as number {number}, of peer {peer}"));
                }
                world.received[peer] += 1;
                world.books.deliver(peer, digest(peer, item), |_| Some(0));
                world.collecting.turn.advance();
                if is_new {
                    let link = &mut world.links[peer % self.workers];
                    link.grant = link.receiving.take().word();
                }
            }
        }
        Ok(())
    }

    fn main_steps(&self, world: &World, take: &mut Take<'_, Act, World>) {
        let mut after = world.clone();
        match world.main {
            Main::Exited => {}
            Main::Announcing(worker) if worker == self.workers => {
                after.main = Main::Reading;
                take(("has announced the epoch to all", 0), Ok(after));
            }
            Main::Announcing(worker) => {
                let start = after.starts[worker].clone();
                match after.workers[worker].has_exited {
                    true => self.renew(&mut after, worker, start),
                    false => after.workers[worker].order = Some(start),
                }
                after.main = Main::Announcing(worker + 1);
                take(("receives the start of the epoch", worker), Ok(after));
            }
            Main::Reading => {
                if let Err(wrong) = self.check_state(world) {
                    take(("main is asked for its state", 0), Err(wrong));
                }
                let began = world.received.iter().any(|&received| received > 0);
                if self.breaks && began && world.epoch < self.epochs {
                    let mut after = world.clone();
                    after.epoch += 1;
                    self.begin_epoch(&mut after, None);
                    take(("main leaves the epoch", 0), Ok(after));
                }
                if world.resumes > 0 {
                    after.resumes -= 1;
                    let position = after.books.accounts(0);
                    after.workers = vec![self.fresh_worker(); self.workers];
                    after.links.iter_mut().for_each(|link| link.units.clear());
                    self.begin_epoch(&mut after, position);
                    take(("main resumes from its state", 0), Ok(after));
                }
                if let Some(after) = self.read(world) {
                    take(("main asks for an item", 0), after);
                }
            }
        }
    }

    fn worker_steps(&self, world: &World, index: usize, take: &mut Take<'_, Act, World>) {
        let mut after = world.clone();
        let World { workers, links, snapshots, .. } = &mut after;
        let (worker, link) = (&mut workers[index], &mut links[index]);
        if let Some(start) = worker.order.take() {
            worker.sending.begin(start.stream);
            worker.dispatch.turn.start_at(start.turn);
            worker.strands = start.strands;
            (worker.departing, worker.ending, worker.runs) = (None, false, true);
            return take(("begins the epoch", index), Ok(after));
        }
        if !worker.runs {
            return;
        }
        let reader = worker.sending.reader(link.grant);
        let is_away = !matches!(reader, Some(Reader::Here(_) | Reader::Earlier));
        let has_room = link.units.len() < self.ring;
        if worker.departing.is_some() {
            let unit = worker.departing.take_if(|_| has_room || is_away);
            let sends = unit.is_some();
            link.units.extend(unit.filter(|_| has_room));
            return if sends {
                take(("sends", index), Ok(after))
            };
        }
        if *snapshots > 0 && has_room && !is_away && !worker.ending {
            let mut saved = world.clone();
            saved.snapshots -= 1;
            for shard in (0..self.shards).filter(|&shard| !worker.dispatch.turn.is_ended(shard)) {
                if saved.links[index].units.len() < self.ring {
                    let Strand { account, made, .. } = worker.strands[shard];
                    let kind = Kind::Saved(Snapshot { sent: account, share: Share::default(), content: made });
                    saved.links[index].units.push_back(Unit { stream: worker.sending.stream(), shard, kind });
                }
            }
            take(("takes snapshots", index), Ok(saved));
        }
        if let Some(result) = self.pump(worker, link, index) {
            take(("pumps", index), result.map(|()| after));
        }
    }

    fn pump(&self, worker: &mut Worker, link: &Link, index: usize) -> Option<Result<(), String>> {
        let stream = worker.sending.stream();
        let Some(turn) = worker.dispatch.turn.next() else {
            worker.runs = false;
            return Some(Ok(()));
        };
        if worker.ending {
            worker.dispatch.turn.end(turn);
            worker.departing = Some(Unit { stream, shard: turn, kind: Kind::End });
            return Some(Ok(()));
        }
        let recomputing = worker.strands.iter().position(|strand| strand.outstanding > 0);
        let choice = match recomputing {
            Some(shard) => Choice::Skip(shard),
            None => {
                worker.dispatch.next_of_shards(worker.sending.permit(link.grant).expect("this model has no damage"))
            }
        };
        let shard = match choice {
            Choice::WaitFor(_) => return None,
            Choice::Nobody => {
                worker.ending = true;
                return Some(Ok(()));
            }
            Choice::To(shard) | Choice::Skip(shard) => shard,
        };
        let peer = index + shard * self.workers;
        let strand = &mut worker.strands[shard];
        if strand.made == self.items[peer] {
            if strand.outstanding > 0 {
                return Some(Err("a shard ends before all received items are recomputed".to_owned()));
            }
            worker.dispatch.turn.end(shard);
            worker.departing = Some(Unit { stream, shard, kind: Kind::End });
            return Some(Ok(()));
        }
        let item = strand.made;
        strand.made += 1;
        strand.account.count(digest(peer, item));
        if recomputing.is_some() {
            strand.outstanding -= 1; // recomputed items do not change the order
            if strand.outstanding == 0 && strand.account.checksum != strand.expected {
                return Some(Err("a recomputed item is not the item that the reader has".to_owned()));
            }
            return Some(Ok(()));
        }
        if let Choice::Skip(_) = choice {
            return Some(Err("only some shards' items are wanted".to_owned()));
        }
        worker.sending.sent();
        worker.departing = Some(Unit { stream, shard, kind: Kind::Item(item) });
        worker.dispatch.turn.advance();
        Some(Ok(()))
    }
}

impl Model for Shards {
    type State = World;
    type Step = Act;
    type Parts = ();

    fn start(&self) -> World {
        let link = Link { units: VecDeque::new(), grant: Grant::NONE, receiving: Receiving::default() };
        let mut world = World {
            main: Main::Exited,
            epoch: 1,
            number: 0,
            links: vec![link; self.workers],
            workers: vec![self.fresh_worker(); self.workers],
            starts: Vec::new(),
            collecting: Collecting::new(self.peers(), self.in_order),
            books: Books::remembering(self.peers(), 1, 1),
            replacing: Replacing::new(self.workers, false),
            held: vec![VecDeque::new(); self.peers()],
            received: Vec::new(),
            exits: self.exits,
            snapshots: self.snapshots,
            resumes: self.resumes,
        };
        self.begin_epoch(&mut world, None);
        world
    }

    fn steps(&self, world: &World, take: &mut Take<'_, Act, World>) {
        self.main_steps(world, take);
        for index in (0..self.workers).filter(|&index| !world.workers[index].has_exited && world.main != Main::Exited) {
            self.worker_steps(world, index, take);
            if world.exits > 0 {
                let mut after = world.clone();
                after.exits -= 1;
                after.workers[index].has_exited = true;
                take(("exits", index), Ok(after));
            }
        }
    }

    fn share((): &mut (), _: &mut World) {}

    fn is_over(&self, world: &World) -> bool {
        world.main == Main::Exited
    }
}
