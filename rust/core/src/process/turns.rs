//! How a wait begins: how many turns it gives to other threads before it sleeps.
//!
//! If both sides of a link share a core, a turn lets the other side fill or empty the ring, and neither pays for a sleep
//! and a wake-up: with small windows on 2 cores this is a factor of 3 to 6. Two things make turns bad, and each has its
//! rule. If the other side is slow, turns do not help, and each costs it two switches of context: every wait that they
//! did not shorten halves them. If a stranger shares the core, such as another program, he keeps it for milliseconds,
//! where the other side would be done in less than one: such turns may take an eighth of the time. Beyond that waits
//! sleep for some fifty times as long as the next such turn takes.
//!
//! A `Turns` serves all threads of a process. Its words are statistics and synchronise nothing; it is told the time in
//! nanoseconds, and reads no clock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Turns that a wait gives away while that helps. If no other thread wants the core they cost a few system calls.
const MOST: u32 = 10;
/// Turns of a wait that only tries whether they help again, and how many waits it is the last of.
const TRIED: u32 = 2;
const TRY_AGAIN: u32 = 16;
/// A sleep that ends sooner was one too many: the next wait gives all turns away.
const NEAR: u64 = 50_000;

/// A turn that lasts as long as this went to a stranger. With up to 64 workers on 2 cores those in which others of the
/// loader run last 0.1 to 0.5 ms, and those that a busy loop takes 2 to 8.
const STRANGE: u64 = 1_500_000;
/// More processes than this take as long themselves until each has had its turn, and leave a stranger a small share.
const FEW: usize = 32;
/// What a stranger's turn costs, in turns: so many times its length of other time pays it back.
const PRICE: u64 = 8;
/// How much may be owed.
const CREDIT: u64 = 100_000_000;
/// Who owes more pays so many times the length of the last such turn.
const REST: u64 = 50;

/// What a process knows about giving turns away.
#[derive(Debug)]
pub struct Turns {
    /// Turns that the next wait gives away.
    turns: AtomicU32,
    /// Waits without any since they were tried.
    since_tried: AtomicU32,
    /// When all that strangers took is paid back.
    paid: AtomicU64,
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

impl Turns {
    /// Begins by giving all turns away.
    pub const fn new() -> Self {
        Self { turns: AtomicU32::new(MOST), since_tried: AtomicU32::new(0), paid: AtomicU64::new(0) }
    }

    /// How many turns a wait that begins now gives away at most.
    pub fn begin(&self, now: u64) -> u32 {
        if self.paid.load(Relaxed) > now + CREDIT {
            return 0;
        }
        let turns = self.turns.load(Relaxed);
        if turns > 0 {
            return turns;
        }
        let since = self.since_tried.load(Relaxed) + 1;
        self.since_tried.store(since % TRY_AGAIN, Relaxed);
        if since == TRY_AGAIN { TRIED } else { 0 }
    }

    /// Notes a turn that was given away from `began` to `now`, in a loader of so many processes; whether the wait may
    /// give further ones.
    pub fn given(&self, began: u64, now: u64, processes: usize) -> bool {
        let took = now.saturating_sub(began);
        if took < STRANGE || processes > FEW {
            return true;
        }
        let paid = self.paid.load(Relaxed).max(now) + took * PRICE;
        let goes_on = paid <= now + CREDIT;
        self.paid.store(if goes_on { paid } else { now + CREDIT + took * REST }, Relaxed);
        goes_on
    }

    /// Notes that a wait was over behind one of its turns.
    pub fn helped(&self) {
        self.turns.store(MOST, Relaxed);
    }

    /// Notes that a wait gave so many turns away, and slept for so long.
    pub fn slept(&self, turns: u32, took: u64) {
        if took < NEAR {
            self.turns.store(MOST, Relaxed);
        } else if turns > 0 {
            self.turns.store(turns / 2, Relaxed);
        }
    }
}
