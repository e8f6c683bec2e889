//! Selects the peer (link) from which a reader takes its next item, and decides what the reader does while it waits.

use crate::round_robin::RoundRobin;

/// The next step of a reader, which is the main process or a worker that reads dispatched items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Deliver the next item of this peer to the user or the graph.
    Deliver(usize),
    /// Receive the next item of this peer before its turn, because the peer whose turn it is waits for another process.
    TakeIn(usize),
    Wait,
    /// Raise an error, because a required process has exited and no more items arrive.
    Fail,
    /// End the epoch, because all peers have ended.
    Over,
}

/// Selects the next peer, and records whether a process has exited.
///
/// In strict order, each worker can only be a limited number of items (its window) ahead. Together with a dispatching
/// process, this limit could cause a deadlock. For example, the main process waits for worker A, worker A waits for the
/// dispatching process, and the dispatching process waits for worker B, which has reached its limit. To prevent the
/// deadlock, a worker that waits for a dispatched item informs the main process, which then receives the items of other
/// workers early.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collecting {
    pub turn: RoundRobin,
    has_died: bool,
}

impl Collecting {
    /// Creates the state for `peers` peers. If `in_order` is true, items are delivered in strict order.
    pub fn new(peers: usize, in_order: bool) -> Self {
        Self { turn: RoundRobin::new(peers, in_order), has_died: false }
    }

    /// Returns the next step. The functions describe a peer: `ready` returns whether its next item can be delivered,
    /// `arrived` whether an item can be received, and `starves` whether the peer waits for the dispatching process.
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

    /// Returns a peer whose item must be received early, so that the dispatching process can serve another peer that
    /// waits. The main process calls this method while it does not wait for an item itself.
    pub fn to_take_in(
        &self,
        mut arrived: impl FnMut(usize) -> bool,
        mut starves: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let live = || (0..self.turn.peers()).filter(|&peer| !self.turn.is_ended(peer));
        let starving = live().find(|&peer| starves(peer))?;
        live().find(|&peer| peer != starving && arrived(peer))
    }

    /// Records that a process has exited. Items that have arrived are still delivered as far as the order allows. The
    /// next step is then [`Next::Fail`].
    pub fn note_death(&mut self) {
        self.has_died = true;
    }

    /// Records that all processes that had exited were replaced.
    pub fn replaced(&mut self) {
        self.has_died = false;
    }
}
