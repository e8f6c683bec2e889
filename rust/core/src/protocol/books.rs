//! The reader's books: how far it has come with each peer, and the snapshots from which a later run can go on there.
//!
//! A writer puts snapshots of its graph between two items. The reader keeps those that it may need, unopened. The
//! user's items may lag behind those that were taken, as pipes in main read ahead. So a log of the last deliveries
//! shows the books as they were some items ago, and a snapshot is kept until the user's items have passed the next one.

use std::collections::VecDeque;

use super::account::Account;

/// How far a worker had read of its share of the dispatched items. The default is the beginning of an epoch, from which
/// a worker without a snapshot goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    /// The pass, from 1.
    pub pass: u32,
    /// How much of that pass.
    pub account: Account,
}

impl Default for Share {
    fn default() -> Self {
        Self { pass: 1, account: Account::default() }
    }
}

/// A snapshot of a writer's graph.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Snapshot<S> {
    /// The account of items that the writer had sent.
    pub sent: Account,
    /// The part of its share that it had read.
    pub share: Share,
    /// The graph.
    pub content: S,
}

/// A snapshot of the dispatching process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dealt<S> {
    /// The pass.
    pub pass: u32,
    /// By worker: what of that pass was dealt to it.
    pub accounts: Vec<Account>,
    /// The graph.
    pub content: S,
}

impl<S> Dealt<S> {
    /// How many items of the pass were dealt.
    pub fn items(&self) -> u64 {
        self.accounts.iter().map(|account| account.items).sum()
    }

    /// Whether the dispatching process can go on from here for a worker that has read so much: the worker has got all
    /// items that were dealt to it before.
    fn is_behind(&self, worker: usize, share: Share) -> bool {
        self.accounts.get(worker).is_some_and(|account| (self.pass, account.items) <= (share.pass, share.account.items))
    }
}

#[derive(Debug, Clone, Hash)]
struct Peer<S> {
    taken: Account,
    /// Whether it has ended.
    ended: bool,
    /// Whether no place that may be asked for is before its first snapshot.
    begun: bool,
    /// Oldest first. The first is as of what was given, or before; the others are behind it.
    snapshots: VecDeque<Snapshot<S>>,
}

/// Where a peer was when so many items were given.
#[derive(Debug)]
pub struct Place<'a, S> {
    /// The account of its items that were given.
    pub given: Account,
    /// The newest snapshot before that; None if the epoch's begin is all there is.
    pub snapshot: Option<&'a Snapshot<S>>,
}

/// Deliveries that are remembered beyond those that were not given yet.
const LOOK_BACK: usize = 64;
/// Deliveries that are remembered if it is not known how many were given.
const LONG_LOOK_BACK: usize = 1 << 16;

/// How many deliveries books remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Memory {
    /// Beyond those that were not given yet.
    beyond: usize,
    /// If it is not known how many were given.
    unknown: usize,
}

/// The books of one epoch.
#[derive(Debug, Clone, Hash)]
pub struct Books<S> {
    peers: Vec<Peer<S>>,
    /// The latest deliveries: whose, and the account of that peer before.
    log: VecDeque<(u32, Account)>,
    /// Items taken in this run.
    total: u64,
    /// The dispatching process's, oldest first.
    dealt: VecDeque<Dealt<S>>,
    memory: Memory,
    /// How many deliveries the log may have before it is cut.
    longest: usize,
    /// The peers that had the turn at the begin, and at the latest delivery.
    first: usize,
    latest: Option<usize>,
}

impl<S> Books<S> {
    /// Empty books.
    pub fn new(peers: usize) -> Self {
        Self::remembering(peers, LOOK_BACK, LONG_LOOK_BACK)
    }

    /// Empty books that remember so many deliveries beyond those that were not given yet, and so many if nobody
    /// knows how many were. The model checker's are short, so that they are cut and pruned in small loaders, too.
    pub fn remembering(peers: usize, beyond: usize, unknown: usize) -> Self {
        let peers = (0..peers)
            .map(|_| Peer { taken: Account::default(), ended: false, begun: false, snapshots: VecDeque::new() })
            .collect();
        Self {
            peers,
            log: VecDeque::new(),
            total: 0,
            dealt: VecDeque::new(),
            memory: Memory { beyond, unknown },
            longest: 2 * beyond,
            first: 0,
            latest: None,
        }
    }

    /// Begins an epoch, in which the peers have come as far as `starts` says. Peers without an entry there are at their
    /// beginning.
    ///
    /// Returns the snapshots that were kept: dropping one may run anything.
    pub fn begin(&mut self, starts: &[Account]) -> Vec<S> {
        self.log.clear();
        (self.first, self.latest) = (0, None);
        let mut kept: Vec<S> = self.dealt.drain(..).map(|dealt| dealt.content).collect();
        self.total = 0;
        self.longest = 2 * self.memory.beyond;
        for (index, peer) in self.peers.iter_mut().enumerate() {
            peer.taken = starts.get(index).copied().unwrap_or_default();
            (peer.ended, peer.begun) = (false, false);
            kept.extend(peer.snapshots.drain(..).map(|snapshot| snapshot.content));
        }
        kept
    }

    /// Gives this peer the first turn.
    pub fn begin_at(&mut self, peer: usize) {
        self.first = peer;
    }

    /// Notes that a peer has ended.
    pub fn end(&mut self, peer: usize) {
        self.peers[peer].ended = true;
    }

    fn turn(&self) -> usize {
        let peers = self.peers.len();
        let from = self.latest.map_or(self.first, |latest| latest + 1);
        (0..peers).map(|step| (from + step) % peers).find(|&peer| !self.peers[peer].ended).unwrap_or(from % peers)
    }

    /// Items taken in this run.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the account of all items that were taken from a peer.
    pub fn taken(&self, peer: usize) -> Account {
        self.peers[peer].taken
    }

    /// Counts an item that was delivered; `lag` tells how many of all were not given to the user yet, if that is known.
    #[inline]
    pub fn deliver(&mut self, peer: usize, digest: u64, lag: impl FnOnce(u64) -> Option<u64>) {
        let taken = &mut self.peers[peer].taken;
        self.log.push_back((peer as u32, *taken));
        taken.count(digest);
        self.latest = Some(peer);
        self.total += 1;
        if self.log.len() > self.longest {
            self.cut(lag(self.total));
        }
    }

    #[cold]
    fn cut(&mut self, lag: Option<u64>) {
        let kept = lag.map_or(self.memory.unknown, |lag| lag as usize + self.memory.beyond);
        let superfluous = self.log.len().saturating_sub(kept);
        self.log.drain(..superfluous);
        self.longest = 2 * kept;
    }

    /// Returns the account of each peer `back` deliveries ago, and the peer that had the turn; None if that is too long
    /// ago.
    pub fn accounts(&self, back: u64) -> Option<(Vec<Account>, usize)> {
        let mut accounts: Vec<Account> = self.peers.iter().map(|peer| peer.taken).collect();
        let back = usize::try_from(back).ok().filter(|&back| back <= self.log.len())?;
        let mut turn = self.turn();
        for &(peer, before) in self.log.iter().rev().take(back) {
            accounts[peer as usize] = before;
            turn = peer as usize;
        }
        Some((accounts, turn))
    }

    /// The places of all peers `back` deliveries ago, and whose turn it was.
    pub fn places(&self, back: u64) -> Option<(Vec<Place<'_, S>>, usize)> {
        let (accounts, turn) = self.accounts(back)?;
        Some((self.places_at(accounts), turn))
    }

    /// The places of all peers where so much of each has come, be it delivered or not.
    pub fn places_at(&self, accounts: Vec<Account>) -> Vec<Place<'_, S>> {
        let places = self.peers.iter().zip(accounts);
        places.map(|(peer, given)| Place { given, snapshot: newest(&peer.snapshots, given) }).collect()
    }

    /// Whether there is a snapshot of a peer.
    pub fn has_snapshot(&self, peer: usize) -> bool {
        !self.peers[peer].snapshots.is_empty()
    }

    /// Whether there is one of the dispatching process.
    pub fn has_dealt(&self) -> bool {
        !self.dealt.is_empty()
    }

    /// The newest snapshot of the dispatching process from which it can come to where all workers were; `shares` as of
    /// the snapshots that they are to go on from.
    pub fn dealt_before(&self, shares: &[Share]) -> Option<&Dealt<S>> {
        let is_before = |dealt: &&Dealt<S>| (0..shares.len()).all(|worker| dealt.is_behind(worker, shares[worker]));
        self.dealt.iter().rev().find(is_before)
    }

    /// By peer, the share at its oldest snapshot.
    fn oldest_shares(&self) -> Vec<Share> {
        let share = |peer: &Peer<S>| peer.snapshots.front().map_or(Share::default(), |one| one.share);
        self.peers.iter().map(share).collect()
    }

    /// Keeps a snapshot of a peer, and lets go of those that what was given has passed; `lag` deliveries were not given
    /// yet.
    ///
    /// Returns what is let go.
    pub fn keep(&mut self, peer: usize, snapshot: Snapshot<S>, lag: Option<u64>) -> Vec<S> {
        let given =
            lag.and_then(|lag| self.accounts(lag.saturating_add(self.memory.beyond as u64).min(self.log.len() as u64)));
        let snapshots = &mut self.peers[peer].snapshots;
        snapshots.push_back(snapshot);
        // If nobody tells what was given, it is as much as the log goes back.
        let earliest = || self.log.iter().find(|(of, _)| *of as usize == peer).map(|(_, before)| *before);
        let given = given.map_or_else(earliest, |(accounts, _)| Some(accounts[peer]));
        let passed = |next: &Snapshot<S>| given.is_some_and(|given| next.sent.items <= given.items);
        let superfluous = (1..snapshots.len()).take_while(|&index| passed(&snapshots[index])).count();
        // Of one of which the log knows no item, all that was taken was given.
        let oldest = given.unwrap_or(self.peers[peer].taken);
        let Peer { snapshots, begun, .. } = &mut self.peers[peer];
        *begun |= snapshots[superfluous].sent.items <= oldest.items;
        snapshots.drain(..superfluous).map(|snapshot| snapshot.content).collect()
    }

    /// Keeps a snapshot of the dispatching process, and lets go of those that all workers' have passed.
    ///
    /// Returns what is let go.
    pub fn keep_dealt(&mut self, dealt: Dealt<S>) -> Vec<S> {
        if self.dealt.iter().any(|known| known.pass == dealt.pass && known.accounts == dealt.accounts) {
            return vec![dealt.content];
        }
        // They come by several ways.
        let place = self.dealt.iter().rposition(|known| order(known) <= order(&dealt)).map_or(0, |place| place + 1);
        self.dealt.insert(place, dealt);
        let oldest = self.oldest_shares();
        let passed = |dealt: &Dealt<S>| (0..oldest.len()).all(|worker| dealt.is_behind(worker, oldest[worker]));
        let superfluous = (1..self.dealt.len()).take_while(|&index| passed(&self.dealt[index])).count();
        self.dealt.drain(..superfluous).map(|dealt| dealt.content).collect()
    }
}

/// Snapshots of the dispatching process in the order in which they were made.
fn order<S>(dealt: &Dealt<S>) -> (u32, u64) {
    (dealt.pass, dealt.items())
}

fn newest<S>(snapshots: &VecDeque<Snapshot<S>>, given: Account) -> Option<&Snapshot<S>> {
    snapshots.iter().rev().find(|snapshot| snapshot.sent.items <= given.items)
}

#[cfg(test)]
mod tests {
    use super::{Account, Books, Dealt, LOOK_BACK, Share, Snapshot};

    fn account(items: u64) -> Account {
        let mut account = Account::default();
        (0..items).for_each(|item| account.count(item));
        account
    }

    fn snapshot(items: u64, dispatched: u64) -> Snapshot<u64> {
        Snapshot { sent: account(items), share: Share { pass: 1, account: account(dispatched) }, content: items }
    }

    fn found(books: &Books<u64>, back: u64) -> Vec<(u64, Option<u64>)> {
        let (places, _) = books.places(back).expect("not too long ago");
        places.iter().map(|place| (place.given.items, place.snapshot.map(|one| one.content))).collect()
    }

    #[test]
    fn the_books_are_looked_at_as_they_were_some_items_ago() {
        let mut books = Books::new(2);
        for item in 0..10 {
            books.deliver(0, item, |_| Some(3));
            books.keep(0, snapshot(item + 1, 0), Some(3));
            books.deliver(1, item, |_| Some(3));
        }
        assert_eq!(found(&books, 0), [(10, Some(10)), (10, None)]);
        assert_eq!(found(&books, 1), [(10, Some(10)), (9, None)]);
        assert_eq!(found(&books, 2), [(9, Some(9)), (9, None)]);
        assert_eq!(books.accounts(3).expect("remembered").1, 1, "whose turn it was then");
        assert_eq!(books.accounts(0).expect("remembered").1, 0);
        books.end(0);
        assert_eq!(books.accounts(0).expect("remembered").1, 1);
        assert_eq!(books.accounts(2).expect("remembered").0[0], account(9), "with its checksum");
        assert!(books.places(21).is_none());
    }

    #[test]
    fn snapshots_go_when_what_was_given_has_passed_the_next_one() {
        let mut books = Books::new(1);
        for item in 0..1000 {
            books.deliver(0, item, |_| Some(5));
            books.keep(0, snapshot(item + 1, 0), Some(5));
        }
        assert!(books.peers[0].snapshots.len() <= LOOK_BACK + 7);
        assert!(books.log.len() <= 2 * (LOOK_BACK + 5) + 1);
        assert_eq!(found(&books, 5), [(995, Some(995))]);
    }

    #[test]
    fn who_takes_a_place_goes_on_from_what_has_come_and_not_from_what_was_delivered() {
        let mut books = Books::new(1);
        books.deliver(0, 0, |_| Some(0));
        books.keep(0, snapshot(1, 0), Some(0));
        books.keep(0, snapshot(3, 0), Some(0));
        let at = |items| books.places_at(vec![account(items)])[0].snapshot.map(|one| one.content);
        assert_eq!((at(2), at(3), at(7)), (Some(1), Some(3), Some(3)));
        assert_eq!(found(&books, 0), [(1, Some(1))], "a state does not see it yet");
    }

    #[test]
    fn the_dispatching_process_goes_on_from_before_all_workers() {
        let mut books: Books<u64> = Books::new(2);
        for each in [2, 1, 5, 9, 7] {
            books.keep_dealt(Dealt { pass: 1, accounts: vec![account(each), account(each - 1)], content: each });
        }
        let share = |items| Share { pass: 1, account: account(items) };
        assert_eq!(books.dealt_before(&[share(8), share(6)]).map(|dealt| dealt.content), Some(7));
        assert_eq!(books.dealt_before(&[share(8), share(5)]).map(|dealt| dealt.content), Some(5));
        assert_eq!(books.dealt_before(&[share(0), share(5)]).map(|dealt| dealt.content), None);
        books.deliver(0, 0, |_| Some(0));
        books.deliver(1, 0, |_| Some(0));
        books.keep(0, snapshot(1, 8), Some(0));
        books.keep(1, snapshot(1, 8), Some(0));
        for item in 0..80 {
            books.deliver(0, item, |_| Some(0));
            books.deliver(1, item, |_| Some(0));
        }
        (0..2).for_each(|worker| drop(books.keep(worker, snapshot(70, 8), Some(0))));
        books.keep_dealt(Dealt { pass: 2, accounts: vec![account(1), account(0)], content: 11 });
        let kept: Vec<u64> = books.dealt.iter().map(|dealt| dealt.content).collect();
        assert_eq!(kept, [7, 9, 11]);
    }

    #[test]
    fn an_epoch_that_goes_on_counts_from_where_it_was() {
        let mut books: Books<u64> = Books::new(2);
        books.begin(&[account(3), account(2)]);
        assert_eq!(found(&books, 0), [(3, None), (2, None)]);
        books.deliver(1, 2, |_| None);
        assert_eq!(books.taken(1), account(3));
        assert_eq!(books.total(), 1);
    }
}
