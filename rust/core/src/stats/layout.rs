//! Defines the layout of a board, which contains the counters of all processes of a loader.
//!
//! ```text
//! 0        BoardHeader          one memory page
//! 4096     page of process 0    PageHeader, `pipes` PipeRecords, `flows` Flows, rounded up to memory pages
//! …        page of process 1
//! …
//! ```
//!
//! In each structure, zero is a valid value of every field.

use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, fence};

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"tdrstats");
/// The version of the layout, which must be increased with every change of the layout.
pub(super) const VERSION: u32 = 6;
pub(super) const MEMORY_PAGE: usize = 4096;
/// The number of bins in a histogram of durations. The first bin starts at 16 ns, and four bins cover each doubling of
/// the duration.
pub(super) const STEPS: usize = 128;
pub(super) const LABEL: usize = 128;
pub(super) const LOCATION: usize = 192;
/// The number of exception types that are counted separately.
pub(super) const KINDS: usize = 4;
pub(super) const KIND: usize = 56;
pub(super) const MACHINE: usize = 112;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoardConfig {
    pub pages: u32,
    /// The number of `Flow` records per process. Each end of a link has one record.
    pub flows: u32,
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
}

/// The header of a board. The main process writes the field `version` last; later, only `wants_large` changes.
#[derive(Debug)]
#[repr(C)]
pub(super) struct BoardHeader {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub pages: AtomicU32,
    pub flows: AtomicU32,
    pub pipes: AtomicU32,
    pub full: AtomicU32,
    pub main: AtomicU32,
    pub made: AtomicU64,
    /// Whether snapshots of any size may be sent, which is true after the user has requested a state.
    pub wants_large: AtomicU32,
}

/// A sequence number (seqlock) that guards data. The sequence number is odd while a writer changes the data. Only one
/// thread may write.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Sequence(AtomicU32);

impl Sequence {
    /// Changes the guarded data. A writer that was killed may have left an odd sequence number, but after this call the
    /// number is even.
    #[inline]
    pub fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let odd = self.0.load(Relaxed) | 1;
        self.0.store(odd, Relaxed);
        // SYNC(sequence): pairs with the fence in the method `read`. A reader that has read changed data therefore also
        // reads the odd sequence number.
        fence(Ordering::Release);
        let changed = change();
        // SYNC(sequence): pairs with the first load in the method `read`.
        self.0.store(odd.wrapping_add(1), Ordering::Release);
        changed
    }

    /// Reads the guarded data, which is consistent unless the writer was killed during a change.
    pub fn read<T>(&self, mut read: impl FnMut() -> T) -> T {
        for attempt in 0..1000 {
            // SYNC(sequence): pairs with the last store in the method `change`.
            let before = self.0.load(Ordering::Acquire);
            let value = read();
            // SYNC(sequence): pairs with the fence in the method `change`.
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.0.load(Relaxed) == before {
                return value;
            }
            if attempt < 100 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now(); // the writer may be suspended during a change
            }
        }
        read()
    }
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Wait {
    sequence: Sequence,
    /// The number (from 1) of the link end that the process waits for, or 0 if this number is unknown.
    pub whom: AtomicU32,
    /// The start time of the current wait in nanoseconds, or 0 if no wait is in progress.
    pub since: AtomicU64,
    pub total: AtomicU64,
    pub count: AtomicU64,
}

impl Wait {
    pub fn begin(&self, now: u64) {
        self.sequence.change(|| {
            self.whom.store(0, Relaxed);
            self.since.store(now.max(1), Relaxed);
        });
    }

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

    pub(super) fn read(&self) -> (u32, u64, u64, u64) {
        self.sequence.read(|| {
            (self.whom.load(Relaxed), self.since.load(Relaxed), self.total.load(Relaxed), self.count.load(Relaxed))
        })
    }
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Flow {
    pub items: AtomicU64,
    /// The number of bytes that were sent in messages and in their blocks.
    pub bytes: AtomicU64,
    pub fragments: AtomicU64,
    /// How often the process at this end of the link has woken up the process at the opposite end.
    pub wakes: AtomicU64,
    pub copies: AtomicU64,
    pub copied: AtomicU64,
    /// The page number of the process at the opposite end of the link.
    pub peer: AtomicU32,
    /// The direction of the link: 0 (unused), 1 (this end sends) or 2 (this end receives).
    pub direction: AtomicU32,
    _pad: AtomicU64,
    /// A sender waits for space or permission, and a receiver waits for items.
    pub wait: Wait,
    pub arena_used: AtomicU64,
    pub arena_peak: AtomicU64,
    pub arena_capacity: AtomicU64,
    /// The number of items that the sender may be ahead of the receiver.
    pub window: AtomicU64,
}

/// Adds `count` to a counter that only one thread writes.
#[inline]
pub fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct SkippedKind {
    /// The number of items that were skipped because of the exception type `name`, or 0 if this entry is unused.
    pub count: AtomicU64,
    pub name: [AtomicU8; KIND],
}

#[derive(Debug)]
#[repr(C, align(64))]
pub struct PipeRecord {
    /// The number of items that the current iterator has yielded, including items before the epoch was resumed.
    pub yielded: AtomicU64,
    /// The total number of items of all iterators of this pipe is `base` plus `yielded`.
    pub base: AtomicI64,
    pub(super) sequence: Sequence,
    pub(super) reader: AtomicU32,
    /// Properties of the pipe, one per bit, as defined by the Python package `datapipes`.
    pub(super) flags: AtomicU32,
    /// The number of network requests that the pipe repeated after an error.
    pub retries: AtomicU32,
    pub(super) capacity: AtomicU64,
    pub samples: AtomicU64,
    /// The estimated duration of all calls in nanoseconds, without the time that was spent in other pipes.
    pub own: AtomicU64,
    /// The number of items that the pipe skipped because of an exception.
    pub skipped: AtomicU64,
    pub(super) label: [AtomicU8; LABEL],
    pub(super) location: [AtomicU8; LOCATION],
    pub(super) histogram: [AtomicU32; STEPS],
    pub(super) kinds: [SkippedKind; KINDS],
}

fn step_of(nanoseconds: u64) -> usize {
    let exponent = 63 - (nanoseconds | 16).leading_zeros() as usize;
    let quarter = (nanoseconds.max(16) >> (exponent - 2)) as usize & 3;
    (4 * (exponent - 4) + quarter).min(STEPS - 1)
}

pub(super) fn middle_of(step: usize) -> f64 {
    let width = (1_u64 << (step / 4 + 4)) as f64 / 4.0;
    width * ((4 + step % 4) as f64 + 0.5)
}

impl PipeRecord {
    /// Records a call that took `own` nanoseconds. Because not every call is measured, this call stands for `weight`
    /// calls, which took about `all` nanoseconds in total.
    pub fn sample(&self, own: u64, all: u64, weight: u64) {
        add(&self.samples, 1);
        add(&self.own, all);
        let slot = &self.histogram[step_of(own)];
        slot.store(slot.load(Relaxed).saturating_add(weight.min(u64::from(u32::MAX)) as u32), Relaxed);
    }

    pub fn skip(&self, kind: &str) {
        self.skipped.fetch_add(1, Relaxed);
        let mut cut = [const { AtomicU8::new(0) }; KIND];
        write_text(&cut, kind);
        for slot in &self.kinds {
            let count = slot.count.load(Relaxed);
            if count == 0 {
                write_text(&slot.name, kind);
            } else if slot.name.iter().zip(&mut cut).any(|(one, other)| one.load(Relaxed) != *other.get_mut()) {
                continue;
            }
            // SYNC(kind): pairs with PipeRecord::skipped_kinds. A reader that sees the count also sees `name`.
            slot.count.store(count.wrapping_add(1), Ordering::Release);
            return;
        }
    }

    pub(super) fn skipped_kinds(&self) -> Vec<(String, u64)> {
        // SYNC(kind): pairs with PipeRecord::skip.
        let counts = self.kinds.iter().map(|slot| (slot, slot.count.load(Ordering::Acquire)));
        counts.filter(|(_, count)| *count > 0).map(|(slot, count)| (read_text(&slot.name), count)).collect()
    }

    /// Sets the number of items that the pipe's current iterator has yielded. The pipe's total number of items, which
    /// includes earlier iterators, does not change.
    pub fn restart(&self, yielded: u64) {
        self.sequence.change(|| {
            let kept = self.yielded.load(Relaxed).wrapping_sub(yielded);
            self.base.store(self.base.load(Relaxed).wrapping_add(kept as i64), Relaxed);
            self.yielded.store(yielded, Relaxed);
        });
    }
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct PageHeader {
    pub sequence: Sequence,
    /// The value is 0 if no process uses the page.
    pub role: AtomicU32,
    pub pid: AtomicU32,
    pub number: AtomicU32,
    pub began: AtomicU64,
    pub epoch: AtomicU32,
    /// `pipes` is the number of pipes with a record, and `all_pipes` is the number of all pipes in the graph.
    pub pipes: AtomicU32,
    pub all_pipes: AtomicU32,
    /// The index of the running pipe plus 1, or 0 if the running pipe is unknown.
    pub current: AtomicU32,
    /// The signal that makes the process write its stack to the descriptor `stack`, or 0.
    pub signal: AtomicU32,
    pub stack: AtomicU32,
    pub restarts: AtomicU32,
    pub snapshots: AtomicU32,
    /// How many nanoseconds the calls of the last pipe in the main process's graph have taken in total.
    pub inside: AtomicU64,
    pub inside_samples: AtomicU64,
    /// Whether a process on another machine has exited (1) or not (0). Only the main process writes the fields from
    /// `exited` to `carried` and the name of the machine.
    pub exited: AtomicU64,
    /// The time when counters from another machine were last received, or 0 if none were received.
    pub arrived: AtomicU64,
    /// How long the threads of the process have run, in nanoseconds.
    pub ran: AtomicU64,
    /// How long the threads of the process have waited for a processor, in nanoseconds.
    pub queued: AtomicU64,
    pub lived: AtomicU64,
    pub carried: AtomicU64,
    pub idle: Wait,
    pub first: Wait,
    /// Measures how long epochs last. In the main process, this measurement starts with the first item of an epoch. In
    /// a child process, this measurement starts with the command for the epoch.
    pub span: Wait,
    /// The size in bytes of the last snapshot that was too large to be sent, or 0.
    pub oversized: AtomicU64,
    pub machine: [AtomicU8; MACHINE],
}

const _: () = {
    assert!(size_of::<PageHeader>() == 448);
    assert!(size_of::<PipeRecord>() == 1152);
    assert!(size_of::<Flow>() == 192);
    assert!(std::mem::offset_of!(PipeRecord, label) == 64);
    assert!(std::mem::offset_of!(Flow, wait) == 64);
    assert!(std::mem::offset_of!(PageHeader, idle) == 128);
    assert!(std::mem::offset_of!(PageHeader, exited) == 72);
    assert!(std::mem::offset_of!(PipeRecord, sequence) == 16);
};

pub(super) fn write_text(slot: &[AtomicU8], text: &str) {
    let end = text.char_indices().map(|(at, one)| at + one.len_utf8()).take_while(|&end| end < slot.len()).last();
    let bytes = &text.as_bytes()[..end.unwrap_or(0)];
    for (index, byte) in slot.iter().enumerate() {
        byte.store(bytes.get(index).copied().unwrap_or(0), Relaxed);
    }
}

pub(super) fn read_text(slot: &[AtomicU8]) -> String {
    let bytes: Vec<u8> = slot.iter().map(|byte| byte.load(Relaxed)).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_within_an_eighth_of_the_middle_of_its_step() {
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
        let slot: [AtomicU8; 6] = Default::default();
        for (text, kept) in [("abc", "abc"), ("abcdef", "abcde"), ("abcdé", "abcd"), ("", "")] {
            write_text(&slot, text);
            assert_eq!(read_text(&slot), kept);
        }
    }

    #[test]
    fn readers_never_see_half_a_change() {
        let wait = Wait::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..200_000 {
                    wait.begin(round * 10);
                    wait.end(round * 10 + 1);
                }
            });
            let mut last = 0;
            while last < 199_999 {
                let (_, since, total, count) = wait.read();
                assert_eq!(total, count, "each wait took one nanosecond");
                assert!(since == 0 || since / 10 == count + 1);
                last = count;
            }
        });
    }

    #[test]
    fn items_of_earlier_iterators_stay_counted() {
        // SAFETY: zero is a valid value of all fields of a record.
        let record: PipeRecord = unsafe { std::mem::zeroed() };
        let all = || record.yielded.load(Relaxed) as i64 + record.base.load(Relaxed);
        record.yielded.store(5, Relaxed);
        record.restart(0);
        record.yielded.store(3, Relaxed);
        assert_eq!(all(), 8);
        record.restart(100);
        assert_eq!((record.yielded.load(Relaxed), all()), (100, 8));
        record.yielded.store(101, Relaxed);
        assert_eq!(all(), 9);
    }
}
