//! The stream that a unit belongs to: an epoch, and a pass of the dispatching process in it.

use std::fmt;

/// One run of a pipe over one link: the epoch that main commanded, and which time in it the pipe is read.
///
/// Streams are ordered as they happen. Every unit carries its own. Passes count from 1; only a reader of dispatched
/// items whose graph reads its source again (`cycle`) comes beyond the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stream(u64);

impl Stream {
    /// The pass number `pass` of the epoch number `epoch`.
    pub const fn new(epoch: u32, pass: u32) -> Self {
        Self(((epoch as u64) << 32) | pass as u64)
    }

    /// The first pass of an epoch.
    pub const fn first(epoch: u32) -> Self {
        Self::new(epoch, 1)
    }

    /// As it stands in a unit's header.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// As it stands in a unit's header.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The epoch.
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The pass in that epoch.
    pub const fn pass(self) -> u32 {
        self.0 as u32
    }

    /// The pass after this one.
    pub const fn next_pass(self) -> Self {
        Self::new(self.epoch(), self.pass().wrapping_add(1))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} pass {}", self.epoch(), self.pass())
    }
}
