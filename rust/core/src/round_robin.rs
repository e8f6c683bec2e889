//! Round robin, for collecting and distributing items.
//!
//! The main process takes items from its workers in turns, and the dispatching process distributes items to them in
//! turns. Both processes use a [`RoundRobin`]. A `RoundRobin` performs no I/O and never waits. The caller requests the
//! peer that has the turn, does the work, and reports the result. Only one thread uses a `RoundRobin`.
//!
//! The order is that of the peer numbers, without peers that have ended. An epoch begins with peer 0.

/// Turns among peers. Some peers may have ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RoundRobin {
    /// By peer: whether it has ended in this epoch.
    ended: Vec<bool>,
    live: usize,
    /// The peer that has the turn: an active peer, if there is any.
    current: usize,
    in_order: bool,
}

impl RoundRobin {
    /// Creates turns among `peers` active peers.
    pub fn new(peers: usize, in_order: bool) -> Self {
        Self { ended: vec![false; peers], live: peers, current: 0, in_order }
    }

    /// Starts an epoch with all peers active.
    pub fn start(&mut self) {
        self.ended.fill(false);
        self.live = self.ended.len();
        self.current = 0;
    }

    /// Starts with all peers active, at the turn of this peer.
    ///
    /// # Panics
    ///
    /// If the peer does not exist.
    pub fn start_at(&mut self, peer: usize) {
        assert!(peer < self.ended.len(), "there are {} peers, so there is no peer {peer}", self.ended.len());
        self.start();
        self.current = peer;
    }

    /// The peer that has the turn, or None if all have ended.
    #[inline]
    pub fn next(&self) -> Option<usize> {
        (self.live > 0).then_some(self.current)
    }

    /// Returns whether the order is strict.
    pub fn is_in_order(&self) -> bool {
        self.in_order
    }

    /// Passes the turn to the next active peer, if there is any.
    #[inline]
    pub fn advance(&mut self) {
        for _ in 0..self.ended.len() {
            self.current = if self.current + 1 == self.ended.len() { 0 } else { self.current + 1 };
            if !self.ended[self.current] {
                return;
            }
        }
    }

    /// Marks a peer as ended. If this peer has the turn, the next active peer gets the turn. Does nothing if the peer
    /// has already ended.
    ///
    /// # Panics
    ///
    /// If the peer does not exist.
    pub fn end(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.ended[peer], true) {
            self.live -= 1;
            if self.current == peer {
                self.advance();
            }
        }
    }

    /// Returns whether a peer has ended.
    ///
    /// # Panics
    ///
    /// If the peer does not exist.
    pub fn is_ended(&self, peer: usize) -> bool {
        self.ended[peer]
    }

    /// The number of peers, including ended peers.
    pub fn peers(&self) -> usize {
        self.ended.len()
    }

    /// Returns the current peer if it is `ready`. Otherwise returns None in strict order, or gives the turn to the
    /// first ready peer after it and returns that one.
    ///
    /// Does not pass the turn on: call [`advance`](Self::advance) after the item was taken.
    #[inline]
    pub fn choose(&mut self, mut ready: impl FnMut(usize) -> bool) -> Option<usize> {
        let current = self.next()?;
        if ready(current) {
            return Some(current);
        }
        if self.in_order {
            return None;
        }
        let peers = self.ended.len();
        let found = (1..peers).map(|i| (current + i) % peers).find(|&peer| !self.ended[peer] && ready(peer))?;
        self.current = found;
        Some(found)
    }
}
