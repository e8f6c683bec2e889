//! Implements doorbells: a process sleeps on its bell until another process rings the bell.
//!
//! A sleeping thread (1) reads the word, (2) increments the count of sleepers, (3) executes a fence, (4) checks for
//! work, and (5) sleeps while the word is unchanged. A ringing thread (1) publishes its change, (2) executes a fence,
//! (3) reads the count of sleepers, and (4) changes the word if the count is not 0.
//!
//! No wake-up is lost, because one of the two fences is executed first. If the sleeper's fence is first, the ringing
//! thread sees the count. If the ringing thread's fence is first, the sleeper sees the change when it checks for work.
//! If the word changes between the sleeper's check and its sleep, the sleep returns immediately.
//!
//! A ringing thread resets the count of sleepers, so further rings are cheap until another thread sleeps.
//!
//! If a faulty process overwrites the bell, a sleeper may wake up unnecessarily, or only after its timeout.

use std::time::Duration;

use crate::sync::primitive::{AtomicU32, AtomicU64, Ordering, fence};

/// Makes threads sleep on a word in memory, and wakes up these threads.
pub trait Parker {
    /// Sleeps while `word` equals `seen`, but no longer than `timeout`.
    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration);
    fn unpark(&self, word: &AtomicU32);
}

/// The part of a doorbell that is in shared memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Bell {
    /// The number of rings that found a sleeping thread. The number may overflow.
    word: AtomicU32,
    /// The lower half is the number of sleeping threads. The upper half is how often a ring has reset this number since
    /// the bell was created.
    sleepers: AtomicU64,
}

const SLEEPER: u64 = 1;
const CLAIM: u64 = 1 << 32;

fn count(sleepers: u64) -> u64 {
    sleepers % CLAIM
}

impl Bell {
    /// Sleeps until `ready` returns true, the bell rings, or the timeout expires. Returns the last result of `ready`.
    /// The method does not call `ready` again after the result true.
    pub fn wait(&self, parker: &impl Parker, timeout: Duration, mut ready: impl FnMut() -> bool) -> bool {
        // SYNC(claim): pairs with `ring`; a thread that reads the word after a ring is counted after the ring's reset.
        let seen = self.word.load(Ordering::Acquire);
        let joined = self.sleepers.fetch_add(SLEEPER, Ordering::Relaxed);
        // SYNC(doorbell): pairs with the fence in `has_sleeper`.
        fence(Ordering::SeqCst);
        let is_ready = ready();
        if !is_ready {
            parker.park(&self.word, seen, timeout);
        }
        self.leave(joined / CLAIM);
        is_ready || ready()
    }

    /// Removes one thread from the count of sleepers, if the number of resets is still `claims`.
    fn leave(&self, claims: u64) {
        let mut sleepers = self.sleepers.load(Ordering::Relaxed);
        while sleepers / CLAIM == claims && count(sleepers) > 0 {
            let left = sleepers - SLEEPER;
            match self.sleepers.compare_exchange(sleepers, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => sleepers = now,
            }
        }
    }

    /// Returns whether any thread that sleeps, or is about to sleep, may have missed the caller's last change.
    #[inline]
    pub fn has_sleeper(&self) -> bool {
        // SYNC(doorbell): pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        count(self.sleepers.load(Ordering::Relaxed)) != 0
    }

    /// Wakes up all sleeping threads. Returns whether this call has woken up any thread.
    pub fn ring(&self, parker: &impl Parker) -> bool {
        let wakes = self.has_sleeper() && self.claim();
        if wakes {
            // SYNC(claim): pairs with `wait`.
            self.word.fetch_add(1, Ordering::Release);
            parker.unpark(&self.word);
        }
        wakes
    }

    fn claim(&self) -> bool {
        let mut sleepers = self.sleepers.load(Ordering::Relaxed);
        while count(sleepers) > 0 {
            let claimed = (sleepers - count(sleepers)).wrapping_add(CLAIM);
            match self.sleepers.compare_exchange(sleepers, claimed, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => sleepers = now,
            }
        }
        false
    }
}

/// A flag that a thread raises while it waits for an event that is frequent, but for which threads rarely wait.
///
/// The waiting thread raises the flag, executes a fence, and checks whether the event has occurred. The publishing
/// thread stores the event, executes a fence, and reads the flag. Therefore, one thread sees the other's store.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Wanted(AtomicU32);

impl Wanted {
    /// Raises the flag. The waiting thread must call this method before it checks for the event.
    pub fn raise(&self) {
        self.0.store(1, Ordering::Relaxed);
        // SYNC(wanted): pairs with the fence in `is_raised`.
        fence(Ordering::SeqCst);
    }

    pub fn lower(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns whether a thread waits. The publishing thread must call this method after it has stored the event.
    #[inline]
    pub fn is_raised(&self) -> bool {
        // SYNC(wanted): pairs with the fence in `raise`.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }
}
