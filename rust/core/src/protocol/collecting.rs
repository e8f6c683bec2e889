//! Selects the peer (link) of a reader's next item, and decides what the reader does until this item arrives.

use crate::round_robin::RoundRobin;

/// The next step of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Deliver the next item of this peer.
    Deliver(usize),
    /// Receive this peer's next item before its turn, because the next peer in turn waits for another process.
    TakeIn(usize),
    Wait,
    /// Fail, because a required process has exited, so no more items arrive.
    Fail,
    /// Stop, because all peers have ended.
    Over,
}

/// Selects the next peer, and records whether a process has exited.
///
/// In strict order, a window limits how many items each worker can be ahead, which can cause a deadlock with a
/// dispatching process. For example, the main process waits for worker A, A waits for the dispatching process, which
/// waits for worker B, and B has reached its limit. To prevent this deadlock, a worker that waits for a dispatched item
/// informs the main process, which receives other workers' items early.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collecting {
    pub turn: RoundRobin,
    has_died: bool,
}

impl Collecting {
    /// Creates the state for a number of peers. With `in_order`, items are delivered in strict order.
    pub fn new(peers: usize, in_order: bool) -> Self {
        Self { turn: RoundRobin::new(peers, in_order), has_died: false }
    }

    /// Returns the next step. For a peer, `ready` returns whether its next item can be delivered, `arrived` whether an
    /// item can be received, and `starves` whether the peer waits for the dispatching process.
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

    /// Returns a peer whose item must be received early, so that the dispatching process can serve another waiting
    /// peer. The main process calls this method while it does not wait for an item.
    pub fn to_take_in(
        &self,
        mut arrived: impl FnMut(usize) -> bool,
        mut starves: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let live = || (0..self.turn.peers()).filter(|&peer| !self.turn.is_ended(peer));
        let starving = live().find(|&peer| starves(peer))?;
        live().find(|&peer| peer != starving && arrived(peer))
    }

    /// Records that a process has exited. Arrived items are still delivered as far as the order allows, before
    /// [`Next::Fail`].
    pub fn note_death(&mut self) {
        self.has_died = true;
    }

    /// Records that all exited processes have been replaced.
    pub fn replaced(&mut self) {
        self.has_died = false;
    }
}
