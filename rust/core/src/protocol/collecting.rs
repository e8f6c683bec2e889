//! Selects the link from which a reader takes its next item, and decides what the reader does while no item is
//! available.

use crate::round_robin::RoundRobin;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    Deliver(usize),
    /// Receive an item over the link with this index before the item's turn, to prevent the deadlock that
    /// [`Collecting`] describes.
    TakeIn(usize),
    Wait,
    /// Raise an error, because a required process has exited.
    Fail,
    /// End the epoch, because all senders have sent their last items.
    Over,
}

/// Prevents a deadlock of the main process, the dispatching process and two workers, A and B. The main process waits
/// for the next item of worker A, worker A waits for the dispatching process, and the dispatching process waits for
/// worker B. Worker B waits for the main process, because only a limited number of its items may be unread. To end this
/// cycle, the main process receives items of worker B before their turn.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Collecting {
    pub turn: RoundRobin,
    has_exited: bool,
}

impl Collecting {
    pub fn new(peers: usize, in_order: bool) -> Self {
        Self { turn: RoundRobin::new(peers, in_order), has_exited: false }
    }

    /// Returns the next step. For each peer, `ready` returns whether an item can be delivered now, `arrived` whether
    /// the peer's link contains an item, and `starves` whether the peer waits for the dispatching process.
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
        if self.has_exited {
            return Next::Fail;
        }
        self.to_take_in(arrived, |peer| peer == current && starves(peer)).map_or(Next::Wait, Next::TakeIn)
    }

    /// If a worker waits for the dispatching process, returns the index of another worker's link that contains an item.
    pub fn to_take_in(
        &self,
        mut arrived: impl FnMut(usize) -> bool,
        mut starves: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let running = || (0..self.turn.peers()).filter(|&peer| !self.turn.is_ended(peer));
        let starving = running().find(|&peer| starves(peer))?;
        running().find(|&peer| peer != starving && arrived(peer))
    }

    /// Records that a process has exited. Items that arrived before the exit are delivered, unless an earlier item is
    /// missing.
    pub fn note_exit(&mut self) {
        self.has_exited = true;
    }

    pub fn replaced(&mut self) {
        self.has_exited = false;
    }
}
