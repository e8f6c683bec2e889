//! The reader of one link or several: the peer of the next item, and the step to take while it is not there.

use crate::round_robin::RoundRobin;

/// The next step of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Deliver what this peer has sent.
    Deliver(usize),
    /// Take in what this peer has sent, to be delivered when its turn comes: the one whose turn it is cannot go on
    /// before.
    TakeIn(usize),
    /// Wait.
    Wait,
    /// A process has died without which nothing more comes: fail.
    Fail,
    /// All have ended.
    Over,
}

/// The order of peers, and whether one has died.
///
/// **Taking in.** In strict order main keeps all but one worker within their windows. With dispatching that can be a
/// circle: the one whose turn it is waits for an item from the dispatching process, which waits for the turn of another
/// worker, who has used up its window and waits for main. A worker that waits for a dispatched item says so, and while
/// the one whose turn it is says so, main takes in what the others have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collecting {
    turn: RoundRobin,
    /// Whether a process has died that was watched.
    has_died: bool,
}

impl Collecting {
    /// Collects from so many peers, in strict turn or as they come.
    pub fn new(peers: usize, in_order: bool) -> Self {
        Self { turn: RoundRobin::new(peers, in_order), has_died: false }
    }

    /// Begins an epoch.
    pub fn begin(&mut self) {
        self.turn.start();
    }

    /// Begins inside an epoch: this peer has the turn.
    pub fn begin_at(&mut self, peer: usize) {
        self.turn.start_at(peer);
    }

    /// Whether nothing is delivered out of turn.
    pub fn is_in_order(&self) -> bool {
        self.turn.is_in_order()
    }

    /// The peer whose turn it is; None when all have ended.
    pub fn turn(&self) -> Option<usize> {
        self.turn.next()
    }

    /// Returns what to do next.
    ///
    /// `ready` tells whether something of a peer can be delivered, `arrived` whether something of it can be taken in,
    /// `starves` whether a peer waits for the dispatching process.
    #[inline]
    pub fn next(
        &mut self,
        ready: impl FnMut(usize) -> bool,
        arrived: impl FnMut(usize) -> bool,
        starves: impl FnMut(usize) -> bool,
    ) -> Next {
        if let Some(peer) = self.turn.choose(ready) {
            return Next::Deliver(peer);
        }
        self.otherwise(arrived, starves)
    }

    fn otherwise(&mut self, arrived: impl FnMut(usize) -> bool, mut starves: impl FnMut(usize) -> bool) -> Next {
        let Some(current) = self.turn.next() else { return Next::Over };
        if self.has_died {
            return Next::Fail;
        }
        self.to_take_in(arrived, |peer| peer == current && starves(peer)).map_or(Next::Wait, Next::TakeIn)
    }

    /// Returns the peer to take in from, because another one starves; None if none does or nothing is there.
    ///
    /// To be called by itself if main waits for anything else than an item of workers that may starve.
    pub fn to_take_in(
        &self,
        mut arrived: impl FnMut(usize) -> bool,
        mut starves: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let live = || (0..self.turn.peers()).filter(|&peer| !self.turn.is_ended(peer));
        let starving = live().find(|&peer| starves(peer))?;
        live().find(|&peer| peer != starving && arrived(peer))
    }

    /// Passes the turn on, after an item was delivered.
    #[inline]
    pub fn advance(&mut self) {
        self.turn.advance();
    }

    /// Notes that a peer has ended.
    pub fn end(&mut self, peer: usize) {
        self.turn.end(peer);
    }

    /// Notes that a process has died. Items that were sent before are delivered as far as the turns go; then
    /// [`Next::Fail`] comes.
    pub fn note_death(&mut self) {
        self.has_died = true;
    }

    /// Notes that other processes have taken the places of all that had died.
    pub fn replaced(&mut self) {
        self.has_died = false;
    }

    /// Whether a peer has ended.
    pub fn is_ended(&self, peer: usize) -> bool {
        self.turn.is_ended(peer)
    }
}
