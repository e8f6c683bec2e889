//! How far one side of a link has come in an epoch, so that a later run can go on there and tell whether it is at the
//! same place.

/// Odd, with bits all over.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Items of an epoch that went over a link, those of earlier runs of the epoch included, and a rolling checksum of
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Account {
    /// Their number.
    pub items: u64,
    /// Depends on what they are and on their order.
    pub checksum: u64,
}

impl Account {
    /// Counts an item; `digest` says which it is.
    #[inline]
    pub fn count(&mut self, digest: u64) {
        self.items += 1;
        self.checksum = (self.checksum ^ digest).wrapping_mul(MULTIPLIER).rotate_left(29);
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
}
