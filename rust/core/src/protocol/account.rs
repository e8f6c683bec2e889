//! Counts items and computes their checksum, so that a resumed epoch can verify recomputed items.

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Account {
    pub items: u64,
    /// A checksum of all items in order, or 0 after an item that is encoded differently in each run.
    pub checksum: u64,
}

impl Account {
    #[inline]
    pub fn count(&mut self, digest: u64) {
        let is_known = self.checksum != 0 || self.items == 0;
        self.items += 1;
        if is_known {
            self.checksum = (self.checksum ^ digest).wrapping_mul(MULTIPLIER).rotate_left(29);
        }
    }
}
