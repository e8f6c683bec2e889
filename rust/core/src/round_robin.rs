//! Round robin, for collecting and distributing items.
//!
//! The main process takes items from its workers in turns, and the dispatching process distributes items to them in
//! turns. Both use a [`RoundRobin`]. It performs no I/O and never waits: its user asks which peer has the turn, does
//! the work, and reports the result. It is used by one thread.
//!
//! The order is that of the peer numbers, without peers that have ended. An epoch begins with peer 0.

/// Turns among peers, some of which may have ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RoundRobin {
    /// By peer: whether it has ended in this epoch.
    ended: Vec<bool>,
    live: usize,
    /// The peer that has the turn: an active one, if there is any.
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

    /// Moves `current` to the next active peer, if there is any.
    fn step(&mut self) {
        for _ in 0..self.ended.len() {
            self.current = if self.current + 1 == self.ended.len() { 0 } else { self.current + 1 };
            if !self.ended[self.current] {
                return;
            }
        }
    }

    /// Passes the turn to the next active peer.
    #[inline]
    pub fn advance(&mut self) {
        self.step();
    }

    /// Marks a peer as ended. If it has the turn, the next active peer gets it. Does nothing if the peer has already
    /// ended.
    ///
    /// # Panics
    ///
    /// If the peer does not exist.
    pub fn end(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.ended[peer], true) {
            self.live -= 1;
            if self.current == peer {
                self.step();
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

    /// The number of peers, including those that have ended.
    pub fn peers(&self) -> usize {
        self.ended.len()
    }

    /// The number of active peers.
    #[inline]
    pub fn live(&self) -> usize {
        self.live
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

#[cfg(test)]
mod tests {
    use super::RoundRobin;

    #[test]
    fn the_turn_goes_round() {
        let mut turn = RoundRobin::new(3, true);
        let mut seen = Vec::new();
        for _ in 0..7 {
            seen.extend(turn.next());
            turn.advance();
        }
        assert_eq!(seen, [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn the_turn_of_a_peer_that_ends_goes_to_the_next_live_one() {
        let mut turn = RoundRobin::new(3, true);
        turn.end(1);
        assert_eq!(turn.next(), Some(0));
        turn.end(0);
        assert_eq!(turn.next(), Some(2));
        turn.end(2);
        turn.end(2);
        assert_eq!((turn.next(), turn.live()), (None, 0));
        turn.advance();
        assert_eq!(turn.choose(|_| true), None);
    }

    #[test]
    fn in_order_no_peer_is_chosen_out_of_turn() {
        let mut turn = RoundRobin::new(2, true);
        assert_eq!(turn.choose(|peer| peer == 1), None);
        assert_eq!(turn.choose(|peer| peer == 0), Some(0));
    }

    #[test]
    fn out_of_order_the_first_ready_live_peer_gets_the_turn() {
        let mut turn = RoundRobin::new(4, false);
        turn.end(2);
        assert_eq!(turn.choose(|peer| peer >= 2), Some(3));
        assert_eq!(turn.next(), Some(3));
        turn.advance();
        assert_eq!(turn.next(), Some(0));
    }

    #[test]
    fn an_epoch_begins_with_all_peers_active_at_peer_0() {
        let mut turn = RoundRobin::new(2, true);
        turn.end(0);
        turn.start();
        assert_eq!((turn.next(), turn.live()), (Some(0), 2));
    }

    #[test]
    fn an_epoch_can_begin_with_any_peer() {
        let mut turn = RoundRobin::new(3, true);
        turn.end(2);
        turn.start_at(2);
        assert_eq!((turn.next(), turn.live()), (Some(2), 3));
        turn.advance();
        assert_eq!(turn.next(), Some(0));
    }

    #[test]
    fn without_peers_there_is_no_turn() {
        let mut turn = RoundRobin::new(0, false);
        turn.advance();
        assert_eq!((turn.next(), turn.choose(|_| true)), (None, None));
    }
}
