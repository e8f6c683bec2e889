//! Doorbells: a process that waits sleeps on its bell until another process rings the bell to wake it up.
//!
//! Wake-ups are never lost. A sleeper (1) reads the word, (2) increments the count of sleepers, (3) executes a fence,
//! (4) checks again for work, and then sleeps while the word is unchanged. A ringing thread (1) publishes its change,
//! (2) executes a fence, (3) reads the count of sleepers. One of the two threads executes its fence before the other
//! thread. If the sleeper's fence is first, the ringing thread sees the count and changes the word. If the ringing
//! thread executes its fence first, the sleeper sees the change when it checks again for work. If the bell rings
//! between the sleeper's check and its sleep, the word changes, so the sleep returns immediately.
//!
//! Several threads of a process may sleep on its bell for different reasons. A ringing thread claims and wakes up all
//! sleepers, so that further rings are cheap until the sleepers run. A sleeper that wakes up because of its timeout
//! decrements the count of sleepers, unless a ringing thread has claimed the sleeper. The number of claims and the
//! count of sleepers share one word, so each claim changes this word.
//!
//! A stray write to the bell may delay a sleeper until its timeout, or cause an unnecessary wake-up. The next claim of
//! the sleepers sets their count to 0, which repairs a damaged count.

use std::time::Duration;

use crate::sync::primitive::{AtomicU32, AtomicU64, Ordering, fence};

/// Puts threads to sleep on a word, and wakes them.
pub trait Parker {
    /// Sleeps while `word` equals `seen`, for at most `timeout`. May return early.
    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration);
    /// Wakes all threads that sleep on `word`.
    fn unpark(&self, word: &AtomicU32);
}

/// The shared part of a doorbell.
#[derive(Debug)]
#[repr(C)]
pub struct Bell {
    /// A counter that is incremented whenever the bell is rung while a thread sleeps, and that may overflow.
    word: AtomicU32,
    /// The number of unclaimed threads that sleep or are about to (lower half), and the number of claims (upper half).
    sleepers: AtomicU64,
}

const SLEEPER: u64 = 1;
const CLAIM: u64 = 1 << 32;

fn count(sleepers: u64) -> u64 {
    sleepers % CLAIM
}

impl Default for Bell {
    fn default() -> Self {
        Self { word: AtomicU32::new(0), sleepers: AtomicU64::new(0) }
    }
}

impl Bell {
    /// Sleeps until `ready` returns true, the bell rings, or the timeout expires. Returns the last result of `ready`.
    /// `ready` is not called again after it has returned true.
    pub fn wait(&self, parker: &impl Parker, timeout: Duration, mut ready: impl FnMut() -> bool) -> bool {
        // SYNC(claim): pairs with `ring`; a thread that reads the word after a claim is counted after this claim.
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

    /// Removes one sleeper from the count, unless a ringing thread has claimed this sleeper since `claims` was read.
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

    /// Returns whether a thread sleeps, or is about to sleep, and may not have seen the caller's last change.
    #[inline]
    pub fn has_sleeper(&self) -> bool {
        // SYNC(doorbell): pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        count(self.sleepers.load(Ordering::Relaxed)) != 0
    }

    /// Wakes up all sleepers, and returns whether this call has woken up any.
    pub fn ring(&self, parker: &impl Parker) -> bool {
        let wakes = self.has_sleeper() && self.claim();
        if wakes {
            // SYNC(claim): pairs with `wait`.
            self.word.fetch_add(1, Ordering::Release);
            parker.unpark(&self.word);
        }
        wakes
    }

    /// Claims all sleepers, so that only the caller wakes them up, or returns false if another thread has claimed them.
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

/// A flag that a thread sets (raises) while it waits for a particular event. If an event is frequent but rarely
/// awaited, the flag avoids ringing the bell for each event.
///
/// No event is missed. The waiting thread raises the flag, executes a fence, and then checks whether the event has
/// occurred. The publishing thread stores the event, executes a fence and reads the flag. Either the waiting thread
/// sees the event, or the publishing thread sees the raised flag and rings the bell.
#[derive(Debug)]
#[repr(transparent)]
pub struct Wanted(AtomicU32);

impl Default for Wanted {
    fn default() -> Self {
        Self::new()
    }
}

impl Wanted {
    /// Creates a flag that is not raised.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Raises the flag. Must be called before the waiting thread checks for the event.
    pub fn raise(&self) {
        self.0.store(1, Ordering::Relaxed);
        // SYNC(wanted): pairs with the fence in `is_raised`.
        fence(Ordering::SeqCst);
    }

    /// Clears the flag. Must be called once the waiting thread has found the event.
    pub fn lower(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns whether a thread waits, so the doorbell must be rung. Must be called after the event was published.
    #[inline]
    pub fn is_raised(&self) -> bool {
        // SYNC(wanted): pairs with the fence in `raise`.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }
}
