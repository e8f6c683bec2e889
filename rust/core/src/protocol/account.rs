//! Counts the items of a stream and computes their checksum, so that a resumed run can verify its items.

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number and the rolling checksum of the items of an epoch, including the items before the epoch was resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Account {
    /// The number of items.
    pub items: u64,
    /// A checksum of the items in their order, or 0 after an item whose bytes are not reproducible.
    pub checksum: u64,
}

impl Account {
    /// Counts an item, and adds the item's digest to the checksum.
    #[inline]
    pub fn count(&mut self, digest: u64) {
        let is_known = self.checksum != 0 || self.items == 0;
        self.items += 1;
        if is_known {
            self.checksum = (self.checksum ^ digest).wrapping_mul(MULTIPLIER).rotate_left(29);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Account;

    #[test]
    fn the_checksum_depends_on_every_item_and_on_their_order() {
        let of = |digests: &[u64]| {
            let mut account = Account::default();
            digests.iter().for_each(|&digest| account.count(digest));
            account.checksum
        };
        assert_eq!(of(&[1, 2, 3]), of(&[1, 2, 3]));
        assert_ne!(of(&[1, 2, 3]), of(&[1, 3, 2]));
        assert_ne!(of(&[1, 2, 3]), of(&[1, 2, 4]));
        assert_ne!(of(&[0]), of(&[0, 0]).wrapping_add(1));
    }

    #[test]
    fn behind_an_unknown_item_the_checksum_stays_unknown() {
        let mut account = Account { items: 1, checksum: 0 };
        account.count(7);
        assert_eq!(account, Account { items: 2, checksum: 0 });
    }
}
