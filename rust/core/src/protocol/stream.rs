//! Defines `Stream`, which identifies the epoch and the iteration to which a message belongs.

use std::fmt;

/// The number of an epoch, and the number of an iteration over the dispatched items in this epoch. An epoch has several
/// iterations over the dispatched items only with pipes such as `cycle`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stream(u64);

impl Stream {
    pub const fn new(epoch: u32, pass: u32) -> Self {
        Self(((epoch as u64) << 32) | pass as u64)
    }

    pub const fn first(epoch: u32) -> Self {
        Self::new(epoch, 1)
    }

    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub const fn raw(self) -> u64 {
        self.0
    }

    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub const fn pass(self) -> u32 {
        self.0 as u32
    }

    pub const fn next_pass(self) -> Self {
        Self::new(self.epoch(), self.pass().wrapping_add(1))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} pass {}", self.epoch(), self.pass())
    }
}
