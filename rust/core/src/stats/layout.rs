//! The layout of a board.
//!
//! ```text
//! 0        BoardHeader          one memory page
//! 4096     page of process 0    PageHeader, `pipes` PipeRecords, `flows` Flows, rounded up to memory pages
//! …        page of process 1
//! …
//! …        page of main as it was when other workers took the place of those before
//! ```
//!
//! All is fixed-width, zero is a valid value of everything, and only its owner writes a page.

use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, fence};

/// "tdrstats" in ASCII.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"tdrstats");
/// Changes whenever the layout does.
pub(super) const VERSION: u32 = 4;
/// Room for the header of a board, and the unit in which pages are measured.
pub(super) const MEMORY_PAGE: usize = 4096;
/// Slow items that are remembered for each process.
pub(super) const SLOW_ITEMS: usize = 8;
/// Steps of a histogram of durations: four for each doubling, from 16 ns on.
pub(super) const STEPS: usize = 128;
/// Bytes of the name of a pipe, and of the place of its function.
pub(super) const LABEL: usize = 128;
/// See [`LABEL`].
pub(super) const LOCATION: usize = 192;
/// Kinds of exceptions that are counted at a pipe; further ones count in the sum alone.
pub(super) const KINDS: usize = 4;
/// Bytes of the name of one.
pub(super) const KIND: usize = 56;
/// Bytes of the words on where a process of another machine is.
pub(super) const PLACE: usize = 120;

/// How large a board is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoardConfig {
    /// Processes.
    pub pages: u32,
    /// Ends of links that a process may have.
    pub flows: u32,
    /// Pipes that a process may have; those beyond are not counted.
    pub pipes: u32,
}

impl BoardConfig {
    pub(super) fn flows_at(self) -> usize {
        size_of::<PageHeader>() + self.pipes as usize * size_of::<PipeRecord>()
    }

    pub(super) fn page_len(self) -> usize {
        (self.flows_at() + self.flows as usize * size_of::<Flow>()).next_multiple_of(MEMORY_PAGE)
    }

    pub(super) fn total(self) -> usize {
        MEMORY_PAGE + self.pages as usize * self.page_len()
    }

    pub(super) fn is_sensible(self) -> bool {
        self.pages <= 1 << 16 && self.flows <= 1 << 16 && self.pipes <= 1 << 10
    }

    /// Whether somebody else's board may be this large: who reads it has the kernel give it memory.
    pub(super) fn is_readable(self) -> bool {
        self.is_sensible() && self.total() <= 512 << 20
    }
}

/// The first memory page of a board. Written by main alone, before anybody else sees it; the version last.
#[derive(Debug)]
#[repr(C)]
pub(super) struct BoardHeader {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub pages: AtomicU32,
    pub flows: AtomicU32,
    pub pipes: AtomicU32,
    /// Whether the time of each pipe is taken, too.
    pub full: AtomicU32,
    /// The process that made it.
    pub main: AtomicU32,
    /// When it was made.
    pub made: AtomicU64,
}

/// A sequence number that is odd while what it guards is changed by its only writer.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Sequence(AtomicU32);

impl Sequence {
    /// Changes what the number guards. One that an owner that was killed has left odd is put right.
    #[inline]
    pub fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let odd = self.0.load(Relaxed) | 1;
        self.0.store(odd, Relaxed);
        // SYNC(sequence): pairs with the fence in `read`; who sees a change sees the odd number, too.
        fence(Ordering::Release);
        let changed = change();
        // SYNC(sequence): pairs with the first load of `read`.
        self.0.store(odd.wrapping_add(1), Ordering::Release);
        changed
    }

    /// Reads what the number guards: as a whole, unless its owner died in the middle of a change.
    pub fn read<T>(&self, mut read: impl FnMut() -> T) -> T {
        for _ in 0..1000 {
            // SYNC(sequence): pairs with the last store of `change`.
            let before = self.0.load(Ordering::Acquire);
            let value = read();
            // SYNC(sequence): pairs with the fence in `change`.
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.0.load(Relaxed) == before {
                return value;
            }
            std::hint::spin_loop();
        }
        read()
    }
}

/// Waits of one kind: how many, how long in all, and since when and for whom somebody waits now.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Wait {
    sequence: Sequence,
    /// The index of the flow that is waited for.
    pub whom: AtomicU32,
    /// When the wait that is under way began; 0: none is.
    pub since: AtomicU64,
    /// Nanoseconds of all waits that are over.
    pub total: AtomicU64,
    /// Waits that are over.
    pub count: AtomicU64,
}

impl Wait {
    /// A wait begins now.
    pub fn begin(&self, whom: u32, now: u64) {
        self.sequence.change(|| {
            self.whom.store(whom, Relaxed);
            self.since.store(now.max(1), Relaxed);
        });
    }

    /// The wait is over; without one nothing happens.
    pub fn end(&self, now: u64) {
        let since = self.since.load(Relaxed);
        if since != 0 {
            self.sequence.change(|| {
                add(&self.total, now.saturating_sub(since));
                add(&self.count, 1);
                self.since.store(0, Relaxed);
            });
        }
    }

    /// (for whom, since when or 0, total, number), as a whole.
    pub(super) fn read(&self) -> (u32, u64, u64, u64) {
        self.sequence.read(|| {
            (self.whom.load(Relaxed), self.since.load(Relaxed), self.total.load(Relaxed), self.count.load(Relaxed))
        })
    }
}

/// One end of a link, as its owner counts. Without a board it lies in the link's header.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Flow {
    /// Items sent or received in all epochs.
    pub items: AtomicU64,
    /// Bytes sent in all epochs, blocks included.
    pub bytes: AtomicU64,
    /// Fragments sent.
    pub fragments: AtomicU64,
    /// Sleepers woken.
    pub wakes: AtomicU64,
    /// Buffers copied out because too much was leased, and their bytes.
    pub copies: AtomicU64,
    /// See `copies`.
    pub copied: AtomicU64,
    /// The page of the other end's process.
    pub peer: AtomicU32,
    /// 0: unused, 1: the owner sends, 2: it receives.
    pub direction: AtomicU32,
    _pad: AtomicU64,
    /// A sender's waits for room or for leave, a receiver's for items.
    pub wait: Wait,
    /// Bytes of the arena that are in use, and the most that ever were.
    pub arena_used: AtomicU64,
    /// See `arena_used`.
    pub arena_peak: AtomicU64,
    /// Bytes that the arena may have.
    pub arena_capacity: AtomicU64,
    /// How many items the sender may be ahead.
    pub window: AtomicU64,
}

/// Adds to a counter that nobody else writes.
#[inline]
pub fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
}

/// Items that were skipped because of one kind of exception.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SkippedKind {
    /// 0: unused. The first count is stored behind the name.
    pub count: AtomicU64,
    pub name: [AtomicU8; KIND],
}

/// A pipe of a process.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PipeRecord {
    /// Items that the valid iterator has yielded; restored ones included.
    pub yielded: AtomicU64,
    /// The number to add to that for the items of all iterators.
    pub base: AtomicI64,
    pub(super) sequence: Sequence,
    /// 1 + the number of the pipe that reads this one; 0: none.
    pub(super) reader: AtomicU32,
    /// The pipe's nature: see `datapipes` in Python; opaque here.
    pub(super) flags: AtomicU32,
    /// Requests over a network that it has sent again after a fault.
    pub retries: AtomicU32,
    /// Most items that it holds ready; 0 if that means nothing.
    pub(super) capacity: AtomicU64,
    /// Calls that were timed.
    pub samples: AtomicU64,
    /// Nanoseconds spent in the pipe alone, extrapolated to all calls.
    pub own: AtomicU64,
    /// Items that were skipped because they raised.
    pub skipped: AtomicU64,
    pub(super) label: [AtomicU8; LABEL],
    pub(super) location: [AtomicU8; LOCATION],
    /// Timed calls by duration, extrapolated to all.
    pub(super) histogram: [AtomicU32; STEPS],
    /// Those of `skipped`, by kind.
    pub(super) kinds: [SkippedKind; KINDS],
}

/// The step of a histogram for a duration.
fn step_of(nanoseconds: u64) -> usize {
    let exponent = 63 - (nanoseconds | 16).leading_zeros() as usize;
    let quarter = (nanoseconds.max(16) >> (exponent - 2)) as usize & 3;
    (4 * (exponent - 4) + quarter).min(STEPS - 1)
}

/// The middle of the durations of a step.
pub(super) fn middle_of(step: usize) -> f64 {
    let width = (1_u64 << (step / 4 + 4)) as f64 / 4.0;
    width * ((4 + step % 4) as f64 + 0.5)
}

impl PipeRecord {
    /// Notes a call that took so long in the pipe alone, and that stands for `weight` calls and as much as `all`
    /// nanoseconds.
    pub fn sample(&self, own: u64, all: u64, weight: u64) {
        add(&self.samples, 1);
        add(&self.own, all);
        let place = &self.histogram[step_of(own)];
        place.store(place.load(Relaxed).saturating_add(weight.min(u64::from(u32::MAX)) as u32), Relaxed);
    }

    /// Counts an item that was skipped because of an exception of this kind.
    pub fn skip(&self, kind: &str) {
        self.skipped.fetch_add(1, Relaxed);
        let mut cut = [const { AtomicU8::new(0) }; KIND];
        write_text(&cut, kind);
        for place in &self.kinds {
            let count = place.count.load(Relaxed);
            if count == 0 {
                write_text(&place.name, kind);
            } else if place.name.iter().zip(&mut cut).any(|(one, other)| one.load(Relaxed) != *other.get_mut()) {
                continue;
            }
            // SYNC(kind): pairs with PipeRecord::skipped_kinds; who sees a count sees its name.
            place.count.store(count.wrapping_add(1), Ordering::Release);
            return;
        }
    }

    /// How many items were skipped, by kind of exception.
    pub(super) fn skipped_kinds(&self) -> Vec<(String, u64)> {
        // SYNC(kind): pairs with PipeRecord::skip.
        let counts = self.kinds.iter().map(|place| (place, place.count.load(Ordering::Acquire)));
        counts.filter(|(_, count)| *count > 0).map(|(place, count)| (read_text(&place.name), count)).collect()
    }

    /// Makes `yielded` the count of the valid iterator; what others have yielded stays counted.
    pub fn restart(&self, yielded: u64, count_all: bool) {
        self.sequence.change(|| {
            let kept = if count_all { self.yielded.load(Relaxed).wrapping_sub(yielded) } else { 0 };
            self.base.store(self.base.load(Relaxed).wrapping_add(kept as i64), Relaxed);
            self.yielded.store(yielded, Relaxed);
        });
    }
}

/// An item that took long.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct SlowRecord {
    pub sequence: Sequence,
    pub epoch: AtomicU32,
    /// Nanoseconds.
    pub took: AtomicU64,
    /// Which item of the process's epoch, from 0 on.
    pub index: AtomicU64,
}

/// The beginning of a process's page.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct PageHeader {
    pub sequence: Sequence,
    /// 0: nobody's yet. Stored last.
    pub role: AtomicU32,
    pub pid: AtomicU32,
    /// The worker's number.
    pub number: AtomicU32,
    /// When the process took the page.
    pub began: AtomicU64,
    /// The epoch that it is in, or was in last.
    pub epoch: AtomicU32,
    /// Pipes that are counted, and that there are.
    pub pipes: AtomicU32,
    pub all_pipes: AtomicU32,
    /// 1 + the pipe that runs now, in full mode; 0: none, or nobody knows.
    pub current: AtomicU32,
    /// The signal upon which the process writes its stack into the descriptor `stack`; 0: it does not.
    pub signal: AtomicU32,
    pub stack: AtomicU32,
    /// How often the process was started again, and states it has sent.
    pub restarts: AtomicU32,
    pub snapshots: AtomicU32,
    /// Nanoseconds that the loader spent in its last pipe, in main.
    pub inside: AtomicU64,
    /// Calls of the last pipe that were timed for that.
    pub inside_samples: AtomicU64,
    /// Of a process of another machine, whose page main writes: whether it has ended. So are the next ones and the last.
    pub gone: AtomicU64,
    /// When its counters came last; 0: it is of this machine.
    pub heard: AtomicU64,
    /// Nanoseconds that its threads ran, that they were ready to and did not, and that it has lived, as of then.
    pub ran: AtomicU64,
    /// See `ran`.
    pub stood: AtomicU64,
    /// See `ran`.
    pub lived: AtomicU64,
    /// Bytes that have come over the network, and in how many frames.
    pub carried: AtomicU64,
    /// See `carried`.
    pub frames: AtomicU64,
    /// Between two commands.
    pub idle: Wait,
    /// For the first item of each epoch, in main.
    pub first: Wait,
    /// Epochs from their first item on, in main; between command and end, in children.
    pub span: Wait,
    pub slow: [SlowRecord; SLOW_ITEMS],
    /// Frames that were full when they left, so that others waited behind them.
    pub full_frames: AtomicU64,
    pub place: [AtomicU8; PLACE],
}

const _: () = {
    assert!(size_of::<PageHeader>() == 640);
    assert!(size_of::<PipeRecord>() == 1152);
    assert!(size_of::<Flow>() == 192);
    assert!(std::mem::offset_of!(PipeRecord, label) == 64);
    assert!(std::mem::offset_of!(Flow, wait) == 64);
    assert!(std::mem::offset_of!(PageHeader, idle) == 128);
    assert!(std::mem::offset_of!(PageHeader, gone) == 72);
    assert!(std::mem::offset_of!(PageHeader, slow) == 320);
    assert!(std::mem::offset_of!(PipeRecord, sequence) == 16);
};

/// Writes a text that fits, cut where a character begins.
pub(super) fn write_text(place: &[AtomicU8], text: &str) {
    let end = text.char_indices().map(|(at, one)| at + one.len_utf8()).take_while(|&end| end < place.len()).last();
    let bytes = &text.as_bytes()[..end.unwrap_or(0)];
    for (index, byte) in place.iter().enumerate() {
        byte.store(bytes.get(index).copied().unwrap_or(0), Relaxed);
    }
}

/// Reads such a text.
pub(super) fn read_text(place: &[AtomicU8]) -> String {
    let bytes: Vec<u8> = place.iter().map(|byte| byte.load(Relaxed)).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_lies_within_an_eighth_of_the_middle_of_its_step() {
        for duration in
            (4..35).flat_map(|octave| (0..16).map(move |part| (1_u64 << octave) + part * (1 << octave) / 16))
        {
            let middle = middle_of(step_of(duration));
            assert!((middle / duration as f64 - 1.0).abs() <= 0.126, "{duration} and {middle}");
        }
        assert_eq!(step_of(0), 0);
        assert_eq!(step_of(u64::MAX), STEPS - 1);
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let place: [AtomicU8; 6] = Default::default();
        for (text, kept) in [("abc", "abc"), ("abcdef", "abcde"), ("abcdé", "abcd"), ("", "")] {
            write_text(&place, text);
            assert_eq!(read_text(&place), kept);
        }
    }

    #[test]
    fn readers_never_see_half_a_change() {
        let wait = Wait::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..200_000 {
                    wait.begin(round as u32, round * 10);
                    wait.end(round * 10 + 1);
                }
            });
            let mut last = 0;
            while last < 199_999 {
                let (whom, since, total, count) = wait.read();
                assert_eq!(total, count, "each wait took one nanosecond");
                assert_eq!(u64::from(whom), if since == 0 { count } else { since / 10 });
                last = count;
            }
        });
    }

    #[test]
    fn items_of_earlier_iterators_stay_counted() {
        // SAFETY: zero is a valid value of all that a record has.
        let record: PipeRecord = unsafe { std::mem::zeroed() };
        let all = || record.yielded.load(Relaxed) as i64 + record.base.load(Relaxed);
        record.yielded.store(5, Relaxed);
        record.restart(0, true);
        record.yielded.store(3, Relaxed);
        assert_eq!(all(), 8);
        record.restart(100, true); // goes on from a state
        assert_eq!((record.yielded.load(Relaxed), all()), (100, 8));
        record.yielded.store(101, Relaxed);
        assert_eq!(all(), 9);
    }
}
