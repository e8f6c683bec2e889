//! Defines the order (round robin) of reading from several links, or writing to several links.

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RoundRobin {
    ended: Vec<bool>,
    running: usize,
    current: usize,
    pub in_order: bool,
}

impl RoundRobin {
    pub fn new(peers: usize, in_order: bool) -> Self {
        Self { ended: vec![false; peers], running: peers, current: 0, in_order }
    }

    pub fn start(&mut self) {
        self.ended.fill(false);
        self.running = self.ended.len();
        self.current = 0;
    }

    /// Begins an epoch. The peer with the number `peer` has the first turn, and all peers become active.
    pub fn start_at(&mut self, peer: usize) {
        assert!(peer < self.ended.len(), "there are {} peers, so there is no peer {peer}", self.ended.len());
        self.start();
        self.current = peer;
    }

    /// Returns the next peer in turn, or None if all peers have ended.
    #[inline]
    pub fn next(&self) -> Option<usize> {
        (self.running > 0).then_some(self.current)
    }

    #[inline]
    pub fn advance(&mut self) {
        for _ in 0..self.ended.len() {
            self.current = if self.current + 1 == self.ended.len() { 0 } else { self.current + 1 };
            if !self.ended[self.current] {
                return;
            }
        }
    }

    pub fn end(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.ended[peer], true) {
            self.running -= 1;
            if self.current == peer {
                self.advance();
            }
        }
    }

    pub fn is_ended(&self, peer: usize) -> bool {
        self.ended[peer]
    }

    pub fn peers(&self) -> usize {
        self.ended.len()
    }

    /// Returns the next peer in turn if `ready` returns true for this peer. If the order is not strict, returns any
    /// ready peer.
    ///
    /// The caller must call [`advance`](Self::advance) after taking the item of the returned peer.
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
