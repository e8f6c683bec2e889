//! Doorbells: one word per process on which it sleeps, and which others ring.
//!
//! Why no wake-up is lost. A sleeper (1) reads the word, (2) counts itself in, (3) fences, (4) looks once more whether
//! there is something to do, and only then sleeps as long as the word is unchanged. A ringer (1) has published its
//! change, (2) fences, (3) looks at the count. The two fences are totally ordered: if the sleeper's comes first, the
//! ringer sees the count and changes the word; if the ringer's comes first, the sleeper's look sees the change. A ring
//! between the sleeper's look and its sleep changes the word, so that the sleep returns at once.
//!
//! Several threads of a process may sleep on its bell, each for something else. A ringer claims all that are counted
//! and wakes them all, so that ringing again before they run costs nothing. A sleeper that wakes up by itself counts
//! itself out, unless a ringer has claimed it meanwhile, which the generation beside the count tells.
//!
//! If something else writes over a bell, a sleeper may sleep to the end of its slice and a ringer may ring in vain;
//! the next claim puts the count right.

use std::time::Duration;

use crate::sync::primitive::{AtomicU32, AtomicU64, Ordering, fence};

/// How a thread sleeps on a word until it changes.
pub trait Parker {
    /// Sleeps while `word` is `seen`, at most for `timeout`; may return early.
    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration);
    /// Wakes all who sleep on `word`.
    fn unpark(&self, word: &AtomicU32);
}

/// The shared half of a doorbell.
#[derive(Debug)]
#[repr(C)]
pub struct Bell {
    /// Changes with every ring that found a sleeper; wraps around.
    word: AtomicU32,
    /// Threads that sleep or are about to and that no ringer has claimed, in the lower half; claims, in the upper half.
    sleepers: AtomicU64,
}

/// One sleeper in `sleepers`.
const SLEEPER: u64 = 1;
/// One claim in `sleepers`.
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
    /// Sleeps until `ready`, a ring or the timeout; returns what `ready` said last. It is not asked again once it has said
    /// yes, so it may take note of what it has seen.
    pub fn wait(&self, parker: &impl Parker, timeout: Duration, mut ready: impl FnMut() -> bool) -> bool {
        // SYNC(claim): pairs with `ring`; who sees the word of a claim is counted in behind that claim, not before it.
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

    /// Counts a sleeper out that was counted in after `claims` claims, unless it was claimed since.
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

    /// Whether somebody sleeps, or is about to, who has not seen what the caller published before.
    #[inline]
    pub fn has_sleeper(&self) -> bool {
        // SYNC(doorbell): pairs with the fence in `wait`.
        fence(Ordering::SeqCst);
        count(self.sleepers.load(Ordering::Relaxed)) != 0
    }

    /// Wakes the sleepers, if there are any, and tells whether there were.
    pub fn ring(&self, parker: &impl Parker) -> bool {
        let wakes = self.has_sleeper() && self.claim();
        if wakes {
            // SYNC(claim): pairs with `wait`.
            self.word.fetch_add(1, Ordering::Release);
            parker.unpark(&self.word);
        }
        wakes
    }

    /// Takes the waking of all sleepers upon the caller; false if another ringer was first.
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

/// A word by which a sleeper says that it waits for one thing in particular, so that what happens often and is rarely
/// waited for does not ring each time.
///
/// The argument is that of the bell once more. The waiter raises the word, fences and looks; the provider publishes,
/// fences and looks at the word. Either the look sees what was published, or the provider sees the word, and rings.
#[derive(Debug)]
#[repr(transparent)]
pub struct Wanted(AtomicU32);

impl Default for Wanted {
    fn default() -> Self {
        Self::new()
    }
}

impl Wanted {
    /// A word that is not raised.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// To be called before looking whether the thing is there.
    pub fn raise(&self) {
        self.0.store(1, Ordering::Relaxed);
        // SYNC(wanted): pairs with the fence in `is_raised`.
        fence(Ordering::SeqCst);
    }

    /// To be called when the thing was found.
    pub fn lower(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether a ring is due; to be asked after publishing.
    #[inline]
    pub fn is_raised(&self) -> bool {
        // SYNC(wanted): pairs with the fence in `raise`.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }
}
