//! Selects the link from which a reader takes its next item, and decides what the reader does while it waits.

use crate::round_robin::RoundRobin;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    Deliver(usize),
    /// Receive this link's next item before its turn, because the sender of the next item waits for another process.
    TakeIn(usize),
    Wait,
    /// Raise an error, because a required process has exited.
    Fail,
    /// End the epoch, because all senders have ended.
    Over,
}

/// In strict order, each worker can only be a limited number of items ahead of the main process. For example, the main
/// process waits for worker A, and worker A waits for the dispatching process. If worker B has reached its limit, and
/// the dispatching process waits for worker B, no process can continue. To prevent this deadlock, the main process
/// receives the items of worker B before their turn.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collecting {
    pub turn: RoundRobin,
    has_died: bool,
}

impl Collecting {
    pub fn new(peers: usize, in_order: bool) -> Self {
        Self { turn: RoundRobin::new(peers, in_order), has_died: false }
    }

    /// Returns the next step. `ready` returns whether an item of a link can be delivered, and `arrived` returns whether
    /// such an item can be received. `starves` returns whether the link's sender waits for the dispatching process.
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

    /// Returns a link whose item must be received early, so that the dispatching process can serve a waiting worker.
    pub fn to_take_in(
        &self,
        mut arrived: impl FnMut(usize) -> bool,
        mut starves: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let live = || (0..self.turn.peers()).filter(|&peer| !self.turn.is_ended(peer));
        let starving = live().find(|&peer| starves(peer))?;
        live().find(|&peer| peer != starving && arrived(peer))
    }

    /// Records that a process has exited. Items that have arrived are still delivered as far as the order allows.
    pub fn note_death(&mut self) {
        self.has_died = true;
    }

    pub fn replaced(&mut self) {
        self.has_died = false;
    }
}
