//! Whose turn it is: the state machine behind collecting and dealing.

/// Turns among peers, some of which have ended.
#[derive(Debug, Clone)]
pub struct RoundRobin {
    ended: Vec<bool>,
    live: usize,
    current: usize,
    in_order: bool,
    epoch: u64,
}

impl RoundRobin {
    /// All `peers` live, in epoch 0.
    pub fn new(peers: usize, in_order: bool) -> Self {
        Self { ended: vec![false; peers], live: peers, current: 0, in_order, epoch: 0 }
    }

    /// Starts an epoch with everybody live.
    pub fn start(&mut self, epoch: u64) {
        self.ended.fill(false);
        self.live = self.ended.len();
        self.current = 0;
        self.epoch = epoch;
    }

    /// The epoch in force.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The peer whose turn it is; None when all have ended.
    #[inline]
    pub fn next(&self) -> Option<usize> {
        (self.live > 0).then_some(self.current)
    }

    fn step(&mut self) {
        for _ in 0..self.ended.len() {
            self.current = if self.current + 1 == self.ended.len() { 0 } else { self.current + 1 };
            if !self.ended[self.current] {
                return;
            }
        }
    }

    /// Moves on to the next live peer.
    #[inline]
    pub fn advance(&mut self) {
        self.step();
    }

    /// Marks a peer as ended.
    pub fn end(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.ended[peer], true) {
            self.live -= 1;
            if self.current == peer {
                self.step();
            }
        }
    }

    /// Whether a peer has ended.
    pub fn is_ended(&self, peer: usize) -> bool {
        self.ended[peer]
    }

    /// How many peers are live.
    #[inline]
    pub fn live(&self) -> usize {
        self.live
    }

    /// The peer to take from: in order the current one if it is ready, else the first ready one from it on.
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
