//! Models how an epoch resumes from each position that the main process can save.

use torchdata_core::protocol::{Account, Books, Command, Dispatched, Share, Snapshot};

use super::explore::Fingerprint;
use super::memory::{Kind, Link};
use super::saving::{Graph, Ordered, Resumption, digest};
use super::shared::Part;
use super::world::{Act, Kept, Main, Setting, Take, World};

const ALL: u64 = 1 << 62;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SavedPosition {
    /// Each worker's delivered items, and its snapshot for resuming.
    pub workers: Vec<(Account, Option<Snapshot<Graph>>)>,
    pub turn: usize,
    pub dispatched: Option<Dispatched<Graph>>,
}

/// A saved position in an epoch, and the data that each child needs to resume there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resumed {
    pub position: SavedPosition,
    pub children: Vec<Part<Resumption>>,
}

impl SavedPosition {
    pub fn of(setting: &Setting, books: &Books<Graph>, back: u64) -> Option<Self> {
        let (accounts, turn) = books.accounts(back)?;
        Some(Self { turn, ..Self::at(setting, books, accounts) })
    }

    pub fn at(setting: &Setting, books: &Books<Graph>, accounts: Vec<Account>) -> Self {
        let positions = books.positions_at(accounts);
        let share = |snapshot: Option<&Snapshot<Graph>>| snapshot.map(|one| one.share).unwrap_or_default();
        let shares: Vec<Share> = positions.iter().map(|position| share(position.snapshot)).collect();
        let dispatched = if setting.dispatches { books.dispatched_before(&shares).cloned() } else { None };
        let workers = positions.iter().map(|position| (position.received, position.snapshot.cloned())).collect();
        Self { workers, turn: 0, dispatched }
    }

    /// Returns the data that each child needs to resume the epoch.
    pub fn resumptions(&self, setting: &Setting) -> Vec<Part<Resumption>> {
        let mut shares = Vec::new();
        let mut children = Vec::new();
        for (received, snapshot) in &self.workers {
            let sent = snapshot.as_ref().map(|one| one.sent).unwrap_or_default();
            let share = snapshot.as_ref().map_or(Share { pass: 1, account: Account::default() }, |one| one.share);
            children.push(Part::from(Resumption {
                graph: snapshot.as_ref().map(|one| one.content),
                starts: vec![(sent, received.items - sent.items, Some(received.checksum))],
                turn: 0,
                share: if share.pass > 1 { Account::default() } else { share.account },
            }));
            shares.push(share);
        }
        if setting.dispatches {
            let begin = vec![Account::default(); shares.len()];
            let accounts = self.dispatched.as_ref().map_or(&begin, |one| &one.accounts);
            let start = |(account, share): (&Account, &Share)| match share.pass {
                2.. => (*account, ALL, None),
                _ => (*account, share.account.items.saturating_sub(account.items), Some(share.account.checksum)),
            };
            children.push(Part::from(Resumption {
                graph: self.dispatched.as_ref().map(|one| one.content),
                starts: accounts.iter().zip(&shares).map(start).collect(),
                turn: accounts.iter().map(|account| account.items as usize).sum::<usize>() % shares.len(),
                share: Account::default(),
            }));
        }
        children
    }
}

impl Setting {
    /// Returns how many of `total` items the user has not received yet, or None if this is unknown.
    pub fn lag(&self, total: u64, received: u8) -> Option<u64> {
        match self.reads_ahead {
            false => Some(0),
            true => self.follows.then(|| total.saturating_sub(received.into())),
        }
    }

    fn before(&self, world: &World, books: &Books<Graph>, ago: u64) -> Option<SavedPosition> {
        let held = books.total().saturating_sub(world.received.into());
        SavedPosition::of(self, books, ago + held)
    }

    pub fn check_positions(&self, world: &World) -> Result<(), String> {
        let inside = matches!(world.main, Main::Announcing(..) | Main::Replacing(_) | Main::Reading(_) | Main::Paused);
        if !self.saves() || !(inside || world.main == Main::Between && world.epoch > 0) {
            return Ok(());
        }
        let what = (&world.kept.books, &world.kept.all, world.received, world.delivered, world.epoch);
        if !self.checked.borrow_mut().insert(Fingerprint::of(&what)) {
            return Ok(());
        }
        let sure = if self.reads_ahead && !self.follows { 0 } else { self.look_back };
        let held = world.kept.books.total().saturating_sub(world.received.into());
        for ago in 0..=u64::from(world.received) {
            let (found, all) = (self.before(world, &world.kept.books, ago), self.before(world, &world.kept.all, ago));
            let Some(position) = found else {
                if ago <= sure as u64 && (sure > 0 || ago + held <= self.look_back as u64) {
                    return Err(format!("the positions {ago} items ago are unknown"));
                }
                continue;
            };
            self.check_position(world, &position, ago)?;
            if ago <= sure as u64 && Some(&position) != all.as_ref() {
                return Err(format!("too much was dropped: {ago} items ago was {all:?}, but {position:?} remains"));
            }
        }
        Ok(())
    }

    fn check_position(&self, world: &World, position: &SavedPosition, ago: u64) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {position:?} for {ago} items ago"));
        let received: u64 = position.workers.iter().map(|(received, _)| received.items).sum();
        if received + ago != u64::from(world.delivered) {
            return wrong("a position is not the user's position");
        }
        let mut least = Vec::new();
        for (worker, (received, snapshot)) in position.workers.iter().enumerate() {
            let made = self.made_by(worker);
            let share = self.share_of(worker);
            if *received != account_of(world.epoch, first(&made, received.items)) {
                return wrong("a position counts other items than were delivered");
            }
            if self.in_order && received.items != self.received_of(worker, world.delivered - ago as u8) {
                return wrong("a position is not in order");
            }
            least.push(snapshot.as_ref().map(|one| one.share));
            let Some(Snapshot { sent, share: read, content }) = snapshot else { continue };
            if content.epoch != world.epoch {
                return wrong("a position names a snapshot of another epoch");
            }
            if sent.items > received.items {
                return wrong("a position names a snapshot after the delivered items");
            }
            if self.makes_from(worker, content) != *made.get(sent.items as usize..).unwrap_or_default() {
                return wrong("the items after a snapshot do not follow it");
            }
            let passed = u64::from(content.read);
            if self.dispatches && read.pass == 1 && read.account != account_of(world.epoch, first(&share, passed)) {
                return wrong("a snapshot has another position in its share");
            }
        }
        match &position.dispatched {
            Some(one) => self.check_sent(world, one, &least).or_else(wrong),
            None => Ok(()),
        }
    }

    fn check_sent(&self, world: &World, one: &Dispatched<Graph>, shares: &[Option<Share>]) -> Result<(), &'static str> {
        if one.content.epoch != world.epoch {
            return Err("a position names a snapshot of another epoch");
        }
        let items: u64 = one.accounts.iter().map(|account| account.items).sum();
        if items != u64::from(one.content.read) {
            return Err("dispatched items were not counted");
        }
        for (worker, (account, share)) in one.accounts.iter().zip(shares).enumerate() {
            let share = share.unwrap_or_default(); // a worker without a position has read nothing in iteration 1
            if share.pass == 1 && (one.pass, account.items) > (1, share.account.items) {
                return Err("a worker's reading is before the dispatching process's snapshot");
            }
            let own = self.share_of(worker);
            if share.pass == 1 && *account != account_of(world.epoch, first(&own, account.items)) {
                return Err("other items were dispatched than a worker has read");
            }
        }
        Ok(())
    }

    fn received_of(&self, worker: usize, delivered: u8) -> u64 {
        let mut left: Vec<usize> = (0..self.workers).map(|worker| self.made_by(worker).len()).collect();
        let (mut received, mut turn) = (0, 0);
        for _ in 0..delivered {
            while left[turn % self.workers] == 0 {
                turn += 1;
            }
            left[turn % self.workers] -= 1;
            received += u64::from(turn % self.workers == worker);
            turn += 1;
        }
        received
    }

    fn makes_from(&self, worker: usize, graph: &Graph) -> Vec<u8> {
        let mut made = vec![graph.made.0; graph.made.1.into()];
        if !graph.exhausted {
            made.extend(self.made_in(worker, graph.read.into()));
            (graph.pass + 1..self.passes).for_each(|_| made.extend(self.made_in(worker, 0)));
        }
        made
    }

    /// Adds the steps where the user leaves the epoch, and where the epoch resumes from a saved state.
    pub fn resume_steps(&self, world: &World, take: &mut Take<'_>) {
        for ago in 0..=world.received.min(1) {
            let Some(position) = self.before(world, &world.kept.books, ago.into()) else { continue };
            let resumed = Part::from(Resumed { children: position.resumptions(self), position });
            let mut after = world.clone();
            after.resumes -= 1;
            let mut elsewhere = after.clone();
            elsewhere.replace_everything(self);
            for (name, mut after) in [("resumes from its state", after), ("resumes elsewhere", elsewhere)] {
                after.delivered -= ago;
                after.begin_epoch(self, Some(resumed.clone()));
                take(Act::Main(name), Ok(after));
            }
        }
    }
}

fn first(items: &[u8], count: u64) -> &[u8] {
    &items[..items.len().min(count as usize)]
}

pub fn account_of(epoch: u32, items: &[u8]) -> Account {
    let mut account = Account::default();
    items.iter().for_each(|&item| account.count(digest((epoch, item))));
    account
}

impl World {
    /// Returns the record of recent deliveries (`books`), and the record of all deliveries (`all`).
    pub fn both_books(&mut self) -> impl Iterator<Item = &mut Books<Graph>> {
        let Kept { books, all, .. } = &mut *self.kept;
        [books, all].into_iter().map(|books| &mut **books)
    }

    pub fn begin_epoch(&mut self, setting: &Setting, resumed: Option<Part<Resumed>>) {
        self.number += 1;
        self.kept.had.fill(0);
        self.begin_collecting(setting);
        let starts: Vec<Account> =
            resumed.iter().flat_map(|resumed| resumed.position.workers.iter().map(|(received, _)| *received)).collect();
        self.both_books().for_each(|books| drop(books.begin(&starts)));
        if let Some(resumed) = &resumed {
            let turn = resumed.position.turn;
            self.collecting.turn.start_at(turn);
            self.both_books().for_each(|books| books.begin_at(turn));
            for (worker, received) in starts.iter().enumerate() {
                let made = setting.made_by(worker);
                first(&made, received.items).iter().for_each(|&item| self.seen += 1 << (4 * u32::from(item)));
            }
            self.delivered = starts.iter().map(|received| received.items as u8).sum();
            self.keep_resumed(resumed);
        }
        self.kept.replacing.begin();
        self.kept.announced = 0;
        self.kept.resumed = resumed;
        self.main = Main::Announcing(self.number, setting.children());
    }

    pub fn ordered(&self, child: usize) -> Ordered {
        let start = self.kept.resumed.as_ref().map(|resumed| resumed.children[child].clone());
        Ordered { command: Command::Epoch(self.number), epoch: self.epoch, start }
    }

    fn keep_resumed(&mut self, resumed: &Resumed) {
        for books in self.both_books() {
            for (worker, (_, snapshot)) in resumed.position.workers.iter().enumerate() {
                snapshot.iter().for_each(|snapshot| drop(books.keep(worker, snapshot.clone(), None)));
            }
            resumed.position.dispatched.iter().for_each(|one| drop(books.keep_dispatched(one.clone())));
        }
    }

    pub fn keep(&mut self, setting: &Setting, peer: usize, kind: &Kind) {
        let lag = setting.lag(self.kept.books.total(), self.received);
        for books in self.both_books() {
            match kind {
                Kind::Saved(snapshot) => drop(books.keep(peer, (**snapshot).clone(), lag)),
                Kind::Dispatched(one) => drop(books.keep_dispatched((**one).clone())),
                _ => {}
            }
        }
    }

    fn replace_everything(&mut self, setting: &Setting) {
        self.children = setting.fresh_children();
        let links = self.out.iter_mut().chain(self.dispatched.iter_mut()).chain(self.elsewhere.dispatch.iter_mut());
        links.for_each(|link| *link = Link::new());
        (0..setting.workers).for_each(|worker| self.renew_carrier(setting, worker));
    }
}
