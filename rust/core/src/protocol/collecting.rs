//! Chooses the peer for the next item of a reader of several links, and what the reader does while that item is
//! missing.

use crate::round_robin::RoundRobin;

/// The next step of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Deliver the next item of this peer.
    Deliver(usize),
    /// Receive the next item of this peer, and store it until its turn. The next peer in turn cannot make progress
    /// until this item is received.
    TakeIn(usize),
    /// Wait.
    Wait,
    /// A required process has exited, so no more items arrive: fail.
    Fail,
    /// All peers have ended.
    Over,
}

/// The order of the peers, and whether a process has exited.
///
/// **Receiving early.** In strict order, each worker has a window that limits how far it can be ahead. With a
/// dispatching process, this could deadlock. The next worker in turn waits for an item from the dispatching process.
/// The dispatching process waits until another worker, which is next in its order, accepts an item. The other worker
/// has used up its window, so it waits for the main process. Therefore a worker reports when it waits for a dispatched
/// item, and meanwhile the main process receives items of further workers early.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collecting {
    turn: RoundRobin,
    /// Whether a watched process has exited.
    has_died: bool,
}

impl Collecting {
    /// Creates the state for this number of peers. With `in_order`, items are taken in strict turns, otherwise as they
    /// arrive.
    pub fn new(peers: usize, in_order: bool) -> Self {
        Self { turn: RoundRobin::new(peers, in_order), has_died: false }
    }

    /// Begins an epoch.
    pub fn begin(&mut self) {
        self.turn.start();
    }

    /// Resumes an epoch at the turn of this peer.
    pub fn begin_at(&mut self, peer: usize) {
        self.turn.start_at(peer);
    }

    /// Returns whether items are delivered in strict order.
    pub fn is_in_order(&self) -> bool {
        self.turn.is_in_order()
    }

    /// The next peer in turn, or None if all have ended.
    pub fn turn(&self) -> Option<usize> {
        self.turn.next()
    }

    /// Returns the next step.
    ///
    /// `ready` returns whether an item of a peer can be delivered, `arrived` whether one can be received, and `starves`
    /// whether the peer waits for the dispatching process.
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

    /// Returns a peer to receive from early because another peer starves, or None.
    ///
    /// Call this directly when the main process waits for something other than an item.
    pub fn to_take_in(
        &self,
        mut arrived: impl FnMut(usize) -> bool,
        mut starves: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let live = || (0..self.turn.peers()).filter(|&peer| !self.turn.is_ended(peer));
        let starving = live().find(|&peer| starves(peer))?;
        live().find(|&peer| peer != starving && arrived(peer))
    }

    /// Passes the turn on after an item was delivered.
    #[inline]
    pub fn advance(&mut self) {
        self.turn.advance();
    }

    /// Records that a peer has ended.
    pub fn end(&mut self, peer: usize) {
        self.turn.end(peer);
    }

    /// Records that a process has exited. Items that it sent before are still delivered as far as the order allows;
    /// then [`Next::Fail`] is returned.
    pub fn note_death(&mut self) {
        self.has_died = true;
    }

    /// Records that all exited processes are replaced.
    pub fn replaced(&mut self) {
        self.has_died = false;
    }

    /// Returns whether a peer has ended.
    pub fn is_ended(&self, peer: usize) -> bool {
        self.turn.is_ended(peer)
    }
}
