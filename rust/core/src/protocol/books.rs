//! Records the items that a reader has received in an epoch, and the snapshots that allow a later run to resume.
//!
//! A snapshot is kept until the user has received all items that were sent before the next snapshot. An item that the
//! reader has delivered may not have reached the user yet, so the reader keeps a log of its latest deliveries.

use std::collections::VecDeque;

use super::account::Account;

/// The position of a worker in the items that the dispatching process sends to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share {
    /// The number of the iteration over the dispatched items in the current epoch, counted from 1.
    pub pass: u32,
    /// The number and checksum of the dispatched items that the worker has read in the iteration `pass`.
    pub account: Account,
}

impl Default for Share {
    fn default() -> Self {
        Self { pass: 1, account: Account::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Snapshot<S> {
    /// The number and checksum of the items that were sent before the snapshot.
    pub sent: Account,
    pub share: Share,
    pub content: S,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dispatched<S> {
    pub pass: u32,
    /// For each worker, the number and checksum of the items that were dispatched to the worker.
    pub accounts: Vec<Account>,
    pub content: S,
}

impl<S> Dispatched<S> {
    pub fn items(&self) -> u64 {
        self.accounts.iter().map(|account| account.items).sum()
    }

    /// Returns whether a worker at position `share` has read all items that the dispatching process sent to the worker
    /// before this snapshot.
    fn precedes(&self, worker: usize, share: Share) -> bool {
        self.accounts.get(worker).is_some_and(|account| (self.pass, account.items) <= (share.pass, share.account.items))
    }
}

#[derive(Debug, Clone, Hash)]
struct Peer<S> {
    taken: Account,
    ended: bool,
    begun: bool,
    /// The snapshots, oldest first.
    snapshots: VecDeque<Snapshot<S>>,
}

#[derive(Debug)]
pub struct PeerPosition<'a, S> {
    pub received: Account,
    /// The latest snapshot that covers at most the first `received.items` items of the sender, or None if the sender
    /// must restart the epoch.
    pub snapshot: Option<&'a Snapshot<S>>,
}

const LOOK_BACK: usize = 64;
const LONG_LOOK_BACK: usize = 1 << 16;

#[derive(Debug, Clone, Hash)]
pub struct Books<S> {
    peers: Vec<Peer<S>>,
    /// The latest deliveries. Each entry contains the sender, and the number and checksum of the sender's earlier
    /// items.
    log: VecDeque<(u32, Account)>,
    total: u64,
    dispatched: VecDeque<Dispatched<S>>,
    /// The number of deliveries that the log keeps even after the user has received the items.
    beyond: usize,
    unknown: usize,
    longest: usize,
    first: usize,
    latest: Option<usize>,
}

impl<S> Books<S> {
    pub fn new(peers: usize) -> Self {
        Self::remembering(peers, LOOK_BACK, LONG_LOOK_BACK)
    }

    /// The log keeps all deliveries that the user has not received, and at least `beyond` earlier deliveries. If it is
    /// unknown which items the user has received, the log keeps at least `unknown` deliveries.
    pub fn remembering(peers: usize, beyond: usize, unknown: usize) -> Self {
        let peers = (0..peers)
            .map(|_| Peer { taken: Account::default(), ended: false, begun: false, snapshots: VecDeque::new() })
            .collect();
        Self {
            peers,
            log: VecDeque::new(),
            total: 0,
            dispatched: VecDeque::new(),
            beyond,
            unknown,
            longest: 2 * beyond,
            first: 0,
            latest: None,
        }
    }

    /// Begins an epoch. `starts` contains the number of earlier items of each sender. If `starts` is empty, all senders
    /// start at item 0.
    ///
    /// Returns the previous epoch's snapshots. The caller must release all locks before dropping the returned
    /// snapshots, because dropping may run Python code.
    pub fn begin(&mut self, starts: &[Account]) -> Vec<S> {
        self.log.clear();
        (self.first, self.latest) = (0, None);
        let mut kept: Vec<S> = self.dispatched.drain(..).map(|one| one.content).collect();
        self.total = 0;
        self.longest = 2 * self.beyond;
        for (index, peer) in self.peers.iter_mut().enumerate() {
            peer.taken = starts.get(index).copied().unwrap_or_default();
            (peer.ended, peer.begun) = (false, false);
            kept.extend(peer.snapshots.drain(..).map(|snapshot| snapshot.content));
        }
        kept
    }

    pub fn begin_at(&mut self, peer: usize) {
        self.first = peer;
    }

    pub fn end(&mut self, peer: usize) {
        self.peers[peer].ended = true;
    }

    fn turn(&self) -> usize {
        let peers = self.peers.len();
        let from = self.latest.map_or(self.first, |latest| latest + 1);
        (0..peers).map(|step| (from + step) % peers).find(|&peer| !self.peers[peer].ended).unwrap_or(from % peers)
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn taken(&self, peer: usize) -> Account {
        self.peers[peer].taken
    }

    /// Counts a delivered item. `lag` returns the number of delivered items that the user has not received, or None if
    /// unknown.
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
        let kept = lag.map_or(self.unknown, |lag| lag as usize + self.beyond);
        let superfluous = self.log.len().saturating_sub(kept);
        self.log.drain(..superfluous);
        self.longest = 2 * kept;
    }

    /// Returns for each sender the number and the checksum of its items before the last `back` deliveries. The second
    /// result is the sender of the first of these `back` deliveries. Returns None if the log contains fewer than `back`
    /// deliveries.
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

    /// Like `accounts`, but returns a position with a snapshot for each sender.
    pub fn positions(&self, back: u64) -> Option<(Vec<PeerPosition<'_, S>>, usize)> {
        let (accounts, turn) = self.accounts(back)?;
        Some((self.positions_at(accounts), turn))
    }

    /// Returns the position of each sender after the number of items that `accounts` contains for the sender.
    pub fn positions_at(&self, accounts: Vec<Account>) -> Vec<PeerPosition<'_, S>> {
        let positions = self.peers.iter().zip(accounts).map(|(peer, received)| {
            let snapshot = peer.snapshots.iter().rev().find(|snapshot| snapshot.sent.items <= received.items);
            PeerPosition { received, snapshot }
        });
        positions.collect()
    }

    pub fn has_snapshot(&self, peer: usize) -> bool {
        !self.peers[peer].snapshots.is_empty()
    }

    pub fn has_dispatched(&self) -> bool {
        !self.dispatched.is_empty()
    }

    /// Returns the latest snapshot of the dispatching process such that all workers have read all items that were
    /// dispatched before the snapshot.
    pub fn dispatched_before(&self, shares: &[Share]) -> Option<&Dispatched<S>> {
        let is_before = |one: &&Dispatched<S>| (0..shares.len()).all(|worker| one.precedes(worker, shares[worker]));
        self.dispatched.iter().rev().find(is_before)
    }

    fn oldest_shares(&self) -> Vec<Share> {
        let share = |peer: &Peer<S>| peer.snapshots.front().map_or(Share::default(), |one| one.share);
        self.peers.iter().map(share).collect()
    }

    /// Stores a snapshot, and returns older snapshots that have become useless. `lag` is the number of delivered items
    /// that the user has not received, or None if unknown.
    pub fn keep(&mut self, peer: usize, snapshot: Snapshot<S>, lag: Option<u64>) -> Vec<S> {
        let received =
            lag.and_then(|lag| self.accounts(lag.saturating_add(self.beyond as u64).min(self.log.len() as u64)));
        let snapshots = &mut self.peers[peer].snapshots;
        snapshots.push_back(snapshot);
        // If `lag` is unknown, only deliveries that are no longer in the log are regarded as received by the user.
        let earliest = || self.log.iter().find(|(of, _)| *of as usize == peer).map(|(_, before)| *before);
        let received = received.map_or_else(earliest, |(accounts, _)| Some(accounts[peer]));
        let passed = |next: &Snapshot<S>| received.is_some_and(|received| next.sent.items <= received.items);
        let superfluous = (1..snapshots.len()).take_while(|&index| passed(&snapshots[index])).count();
        let oldest = received.unwrap_or(self.peers[peer].taken);
        let Peer { snapshots, begun, .. } = &mut self.peers[peer];
        *begun |= snapshots[superfluous].sent.items <= oldest.items;
        snapshots.drain(..superfluous).map(|snapshot| snapshot.content).collect()
    }

    /// Stores a snapshot of the dispatching process, and returns older snapshots that have become useless.
    pub fn keep_dispatched(&mut self, one: Dispatched<S>) -> Vec<S> {
        if self.dispatched.iter().any(|known| known.pass == one.pass && known.accounts == one.accounts) {
            return vec![one.content];
        }
        // The snapshot is inserted at its position in the sorted list, because snapshots arrive over several links in
        // any order.
        let index = self.dispatched.iter().rposition(|known| order(known) <= order(&one)).map_or(0, |index| index + 1);
        self.dispatched.insert(index, one);
        let oldest = self.oldest_shares();
        let passed = |one: &Dispatched<S>| (0..oldest.len()).all(|worker| one.precedes(worker, oldest[worker]));
        let superfluous = (1..self.dispatched.len()).take_while(|&index| passed(&self.dispatched[index])).count();
        self.dispatched.drain(..superfluous).map(|one| one.content).collect()
    }
}

fn order<S>(one: &Dispatched<S>) -> (u32, u64) {
    (one.pass, one.items())
}
