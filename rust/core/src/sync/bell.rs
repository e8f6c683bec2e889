//! Implements bells. A process sleeps on its bell until another process rings this bell.
//!
//! A sleeping thread increments the count of sleepers, executes a memory fence, and checks for work. A ringing thread
//! publishes its change, executes a memory fence, and reads the count of sleepers.
//!
//! No wake-up is lost. Because both threads execute a fence, the ringing thread sees the sleeper, or the sleeping
//! thread sees the change before it sleeps.

use std::time::Duration;

use crate::sync::primitive::{AtomicU32, AtomicU64, Ordering, fence};

pub trait Parker {
    /// Sleeps while `word` equals `seen`, but no longer than `timeout`.
    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration);
    fn unpark(&self, word: &AtomicU32);
}

#[derive(Debug, Default)]
#[repr(C)]
pub struct Bell {
    /// The number of calls of `ring` that found a sleeping thread. Sleeping threads wait until this number changes.
    word: AtomicU32,
    /// The lower 32 bits contain the number of sleeping threads. `ring` sets the lower 32 bits to 0, and adds 1 to the
    /// upper 32 bits.
    sleepers: AtomicU64,
}

const SLEEPER: u64 = 1;
const CLAIM: u64 = 1 << 32;

fn count(sleepers: u64) -> u64 {
    sleepers % CLAIM
}

impl Bell {
    /// Sleeps until `ready` returns true, the bell rings, or the timeout expires. Returns the last result of `ready`.
    pub fn wait(&self, parker: &impl Parker, timeout: Duration, mut ready: impl FnMut() -> bool) -> bool {
        // SYNC(claim): pairs with `ring`. If a thread reads a value of `word` that `ring` has stored, the thread
        // increments `sleepers` only after `ring` has reset `sleepers`.
        let seen = self.word.load(Ordering::Acquire);
        let joined = self.sleepers.fetch_add(SLEEPER, Ordering::Relaxed);
        // SYNC(bell): pairs with the fence in `has_sleeper`.
        fence(Ordering::SeqCst);
        let is_ready = ready();
        if !is_ready {
            parker.park(&self.word, seen, timeout);
        }
        self.leave(joined / CLAIM);
        is_ready || ready()
    }

    /// Removes one thread from the count of sleepers, unless `ring` has reset the count.
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

    /// Returns whether the caller must wake up a thread, because the thread sleeps or is about to sleep.
    #[inline]
    pub fn has_sleeper(&self) -> bool {
        // SYNC(bell): pairs with the fence in `wait`.
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

/// A flag that requests a wake-up at the next event. If no waiting thread has raised the flag, an event causes no
/// system call.
///
/// The waiting thread raises the flag, executes a memory fence, and checks whether the event has occurred. The
/// publishing thread publishes the event, executes a memory fence, and reads the flag. Because both threads execute a
/// fence, the waiting thread sees the event, or the publishing thread sees the flag.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Wanted(AtomicU32);

impl Wanted {
    /// The waiting thread must call this method before it checks for the event.
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
