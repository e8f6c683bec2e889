//! Models how an epoch resumes from each position that the main process can save.

use torchdata_core::protocol::{Account, Books, Command, Dealt, Share, Snapshot};

use super::explore::Fingerprint;
use super::memory::{Kind, Link};
use super::saving::{Graph, Ordered, Resumption, digest};
use super::shared::Part;
use super::world::{Act, Kept, Main, Setting, Take, World};

const ALL: u64 = 1 << 62;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Each worker's delivered items, and its snapshot for resuming.
    pub workers: Vec<(Account, Option<Snapshot<Graph>>)>,
    pub turn: usize,
    pub dealt: Option<Dealt<Graph>>,
}

/// A saved position in an epoch, and the data that each child needs to resume there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GoingOn {
    pub place: Place,
    pub children: Vec<Part<Resumption>>,
}

impl Place {
    pub fn of(setting: &Setting, books: &Books<Graph>, back: u64) -> Option<Self> {
        let (accounts, turn) = books.accounts(back)?;
        Some(Self { turn, ..Self::at(setting, books, accounts) })
    }

    pub fn at(setting: &Setting, books: &Books<Graph>, accounts: Vec<Account>) -> Self {
        let positions = books.positions_at(accounts);
        let share = |snapshot: Option<&Snapshot<Graph>>| snapshot.map(|one| one.share).unwrap_or_default();
        let shares: Vec<Share> = positions.iter().map(|position| share(position.snapshot)).collect();
        let dealt = if setting.dispatches { books.dealt_before(&shares).cloned() } else { None };
        let workers = positions.iter().map(|position| (position.given, position.snapshot.cloned())).collect();
        Self { workers, turn: 0, dealt }
    }

    /// Returns the data that each child needs to resume the epoch.
    pub fn resumptions(&self, setting: &Setting) -> Vec<Part<Resumption>> {
        let mut shares = Vec::new();
        let mut children = Vec::new();
        for (given, snapshot) in &self.workers {
            let sent = snapshot.as_ref().map(|one| one.sent).unwrap_or_default();
            let share = snapshot.as_ref().map_or(Share { pass: 1, account: Account::default() }, |one| one.share);
            children.push(Part::from(Resumption {
                graph: snapshot.as_ref().map(|one| one.content),
                starts: vec![(sent, given.items - sent.items, Some(given.checksum))],
                turn: 0,
                share: if share.pass > 1 { Account::default() } else { share.account },
            }));
            shares.push(share);
        }
        if setting.dispatches {
            let begin = vec![Account::default(); shares.len()];
            let accounts = self.dealt.as_ref().map_or(&begin, |dealt| &dealt.accounts);
            let start = |(account, share): (&Account, &Share)| match share.pass {
                2.. => (*account, ALL, None),
                _ => (*account, share.account.items.saturating_sub(account.items), Some(share.account.checksum)),
            };
            children.push(Part::from(Resumption {
                graph: self.dealt.as_ref().map(|dealt| dealt.content),
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
    pub fn lag(&self, total: u64, given: u8) -> Option<u64> {
        match self.reads_ahead {
            false => Some(0),
            true => self.follows.then(|| total.saturating_sub(given.into())),
        }
    }

    fn place(&self, world: &World, books: &Books<Graph>, ago: u64) -> Option<Place> {
        let held = books.total().saturating_sub(world.given.into());
        Place::of(self, books, ago + held)
    }

    pub fn check_places(&self, world: &World) -> Result<(), String> {
        let inside = matches!(world.main, Main::Telling(..) | Main::Replacing(_) | Main::Reading(_) | Main::Paused);
        if !self.saves() || !(inside || world.main == Main::Between && world.epoch > 0) {
            return Ok(());
        }
        let what = (&world.kept.books, &world.kept.all, world.given, world.delivered, world.epoch);
        if !self.checked.borrow_mut().insert(Fingerprint::of(&what)) {
            return Ok(());
        }
        let sure = if self.reads_ahead && !self.follows { 0 } else { self.look_back };
        let held = world.kept.books.total().saturating_sub(world.given.into());
        for ago in 0..=u64::from(world.given) {
            let (found, all) = (self.place(world, &world.kept.books, ago), self.place(world, &world.kept.all, ago));
            let Some(place) = found else {
                if ago <= sure as u64 && (sure > 0 || ago + held <= self.look_back as u64) {
                    return Err(format!("nobody knows where everything was {ago} items ago"));
                }
                continue;
            };
            self.check_place(world, &place, ago)?;
            if ago <= sure as u64 && Some(&place) != all.as_ref() {
                return Err(format!("too much was forgotten: {ago} items ago was {all:?}, but {place:?} is left"));
            }
        }
        Ok(())
    }

    fn check_place(&self, world: &World, place: &Place, ago: u64) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {place:?} for {ago} items ago"));
        let given: u64 = place.workers.iter().map(|(given, _)| given.items).sum();
        if given + ago != u64::from(world.delivered) {
            return wrong("a place is not where the user is");
        }
        let mut least = Vec::new();
        for (worker, (given, snapshot)) in place.workers.iter().enumerate() {
            let made = self.made_by(worker);
            let share = self.share_of(worker);
            if *given != account_of(world.epoch, first(&made, given.items)) {
                return wrong("a place counts other items than were given");
            }
            if self.in_order && given.items != self.given_of(worker, world.delivered - ago as u8) {
                return wrong("a place is not in order");
            }
            least.push(snapshot.as_ref().map(|one| one.share));
            let Some(Snapshot { sent, share: read, content }) = snapshot else { continue };
            if content.epoch != world.epoch {
                return wrong("a place names a snapshot of another epoch");
            }
            if sent.items > given.items {
                return wrong("a place names a snapshot beyond what was given");
            }
            if self.makes_from(worker, content) != *made.get(sent.items as usize..).unwrap_or_default() {
                return wrong("a snapshot does not go on with what follows it");
            }
            let behind = u64::from(content.read);
            if self.dispatches && read.pass == 1 && read.account != account_of(world.epoch, first(&share, behind)) {
                return wrong("a snapshot was read from another place of its share");
            }
        }
        match &place.dealt {
            Some(dealt) => self.check_dealt(world, dealt, &least).or_else(wrong),
            None => Ok(()),
        }
    }

    fn check_dealt(&self, world: &World, dealt: &Dealt<Graph>, shares: &[Option<Share>]) -> Result<(), &'static str> {
        if dealt.content.epoch != world.epoch {
            return Err("a place names a snapshot of another epoch");
        }
        let items: u64 = dealt.accounts.iter().map(|account| account.items).sum();
        if items != u64::from(dealt.content.read) {
            return Err("what was dealt was not counted");
        }
        for (worker, (account, share)) in dealt.accounts.iter().zip(shares).enumerate() {
            let share = share.unwrap_or_default(); // a worker without a position has read nothing in iteration 1
            if share.pass == 1 && (dealt.pass, account.items) > (1, share.account.items) {
                return Err("a worker's reading is before the dispatching process's snapshot");
            }
            let dealt = self.share_of(worker);
            if share.pass == 1 && *account != account_of(world.epoch, first(&dealt, account.items)) {
                return Err("other items were dealt than a worker has read");
            }
        }
        Ok(())
    }

    fn given_of(&self, worker: usize, delivered: u8) -> u64 {
        let mut left: Vec<usize> = (0..self.workers).map(|worker| self.made_by(worker).len()).collect();
        let (mut given, mut turn) = (0, 0);
        for _ in 0..delivered {
            while left[turn % self.workers] == 0 {
                turn += 1;
            }
            left[turn % self.workers] -= 1;
            given += u64::from(turn % self.workers == worker);
            turn += 1;
        }
        given
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
    pub fn going_on_steps(&self, world: &World, take: &mut Take<'_>) {
        for ago in 0..=world.given.min(1) {
            let Some(place) = self.place(world, &world.kept.books, ago.into()) else { continue };
            let going_on = Part::from(GoingOn { children: place.resumptions(self), place });
            let mut after = world.clone();
            after.resumes -= 1;
            let mut elsewhere = after.clone();
            elsewhere.replace_everything(self);
            for (name, mut after) in [("goes on from its state", after), ("goes on elsewhere", elsewhere)] {
                after.delivered -= ago;
                after.begin_epoch(self, Some(going_on.clone()));
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

    pub fn begin_epoch(&mut self, setting: &Setting, going_on: Option<Part<GoingOn>>) {
        self.number += 1;
        self.kept.had.fill(0);
        self.begin_collecting(setting);
        let starts: Vec<Account> =
            going_on.iter().flat_map(|going_on| going_on.place.workers.iter().map(|(given, _)| *given)).collect();
        self.both_books().for_each(|books| drop(books.begin(&starts)));
        if let Some(going_on) = &going_on {
            let turn = going_on.place.turn;
            self.collecting.turn.start_at(turn);
            self.both_books().for_each(|books| books.begin_at(turn));
            for (worker, given) in starts.iter().enumerate() {
                let made = setting.made_by(worker);
                first(&made, given.items).iter().for_each(|&item| self.seen += 1 << (4 * u32::from(item)));
            }
            self.delivered = starts.iter().map(|given| given.items as u8).sum();
            self.keep_what_goes_on(going_on);
        }
        self.kept.replacing.begin();
        self.kept.told = 0;
        self.kept.going_on = going_on;
        self.main = Main::Telling(self.number, setting.children());
    }

    pub fn ordered(&self, child: usize) -> Ordered {
        let start = self.kept.going_on.as_ref().map(|going_on| going_on.children[child].clone());
        Ordered { command: Command::Epoch(self.number), epoch: self.epoch, start }
    }

    fn keep_what_goes_on(&mut self, going_on: &GoingOn) {
        for books in self.both_books() {
            for (worker, (_, snapshot)) in going_on.place.workers.iter().enumerate() {
                snapshot.iter().for_each(|snapshot| drop(books.keep(worker, snapshot.clone(), None)));
            }
            going_on.place.dealt.iter().for_each(|dealt| drop(books.keep_dealt(dealt.clone())));
        }
    }

    pub fn keep(&mut self, setting: &Setting, peer: usize, kind: &Kind) {
        let lag = setting.lag(self.kept.books.total(), self.given);
        for books in self.both_books() {
            match kind {
                Kind::Saved(snapshot) => drop(books.keep(peer, (**snapshot).clone(), lag)),
                Kind::Dealt(dealt) => drop(books.keep_dealt((**dealt).clone())),
                _ => {}
            }
        }
    }

    fn replace_everything(&mut self, setting: &Setting) {
        self.children = setting.fresh_children();
        let links = self.out.iter_mut().chain(self.dealt.iter_mut()).chain(self.elsewhere.dealing.iter_mut());
        links.for_each(|link| *link = Link::new());
        (0..setting.workers).for_each(|worker| self.renew_carrier(setting, worker));
    }
}
