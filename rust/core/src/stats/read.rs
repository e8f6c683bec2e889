//! A page as plain values.

use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};

use super::board::{Board, PageRef, Role};
use super::layout::{PipeRecord, STEPS, Wait, middle_of, read_text};

/// Waits of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// The index of the flow that is waited for.
    pub whom: u32,
    /// When the wait began that is under way; 0: none is.
    pub since: u64,
    /// Nanoseconds of all waits that are over.
    pub total: u64,
    /// Their number.
    pub count: u64,
}

impl WaitCounts {
    fn of(wait: &Wait) -> Self {
        let (whom, since, total, count) = wait.read();
        Self { whom, since, total, count }
    }
}

/// An end of a link. See [`super::Flow`] for the meanings.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as in Flow")]
pub struct FlowCounts {
    pub peer: u32,
    pub sends: bool,
    pub items: u64,
    pub bytes: u64,
    pub fragments: u64,
    pub wakes: u64,
    pub copies: u64,
    pub copied: u64,
    pub wait: WaitCounts,
    pub arena_used: u64,
    pub arena_peak: u64,
    pub arena_capacity: u64,
    pub window: u64,
}

/// A pipe of a process.
#[derive(Debug, Clone)]
pub struct PipeCounts {
    /// Its name.
    pub label: String,
    /// Where its function stands.
    pub location: String,
    /// The pipe that reads it.
    pub reader: Option<u32>,
    /// As they were given.
    pub flags: u32,
    /// Most items that it holds ready.
    pub capacity: u64,
    /// Items of the valid iterator, restored ones included, and those made by all iterators.
    pub yielded: u64,
    /// See `yielded`.
    pub items: u64,
    /// Calls that were timed.
    pub samples: u64,
    /// Nanoseconds in the pipe alone.
    pub own: u64,
    /// Items that were skipped because they raised.
    pub skipped: u64,
    /// These by kind of exception; further kinds are not among them.
    pub skipped_kinds: Vec<(String, u64)>,
    /// Nanoseconds that half of the calls, and 99 of 100, take at most; None if none was timed.
    pub quantiles: Option<(f64, f64)>,
}

/// An item that took long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowItem {
    /// The epoch in which it was made.
    pub epoch: u32,
    /// Nanoseconds.
    pub took: u64,
    /// Which of the process's items in that epoch.
    pub index: u64,
}

/// The counts of a process. See [`super::Board`].
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "as on the page")]
pub struct PageCounts {
    pub index: usize,
    pub role: u32,
    pub pid: u32,
    pub number: u32,
    pub began: u64,
    pub epoch: u32,
    pub current: u32,
    pub signal: u32,
    pub stack: u32,
    pub restarts: u32,
    pub snapshots: u32,
    pub inside: u64,
    pub inside_samples: u64,
    pub replaced: bool,
    pub all_pipes: u32,
    pub idle: WaitCounts,
    pub first: WaitCounts,
    pub span: WaitCounts,
    pub slow: Vec<SlowItem>,
    pub flows: Vec<FlowCounts>,
    pub pipes: Vec<PipeCounts>,
}

/// The page is of no process of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("page {page} of the counters {what}")]
pub struct Unreadable {
    /// The page.
    pub page: usize,
    /// The damage.
    pub what: &'static str,
}

impl Board {
    /// The pages that processes have taken.
    ///
    /// # Errors
    ///
    /// A page says something that no process of this release writes.
    pub fn read(self: &Arc<Self>) -> Result<Vec<PageCounts>, Unreadable> {
        (0..self.config().pages as usize).filter_map(|index| self.page(index)?.read().transpose()).collect()
    }
}

impl PageRef {
    fn read(&self) -> Result<Option<PageCounts>, Unreadable> {
        let refuse = |what| Err(Unreadable { page: self.index(), what });
        let header = self.header();
        let (role, pid, number, began) = header.sequence.read(|| {
            let numbers = [&header.role, &header.pid, &header.number].map(|word| word.load(Relaxed));
            (numbers[0], numbers[1], numbers[2], header.began.load(Relaxed))
        });
        if role == 0 {
            return Ok(None);
        }
        if !Role::is_one(role) {
            return refuse("is of a process that does what no process of a loader does");
        }
        // SYNC(stack): pairs with PageRef::set_stack.
        let signal = header.signal.load(Ordering::Acquire);
        let slow = header.slow.iter().map(|slow| {
            slow.sequence.read(|| SlowItem {
                epoch: slow.epoch.load(Relaxed),
                took: slow.took.load(Relaxed),
                index: slow.index.load(Relaxed),
            })
        });
        let mut slow: Vec<SlowItem> = slow.filter(|slow| slow.took > 0).collect();
        slow.sort_by_key(|slow| std::cmp::Reverse(slow.took));
        // SYNC(pipes): pairs with PageRef::set_pipes.
        let pipes = header.pipes.load(Ordering::Acquire);
        if pipes > self.board.config().pipes {
            return refuse("counts more pipes than there is room for");
        }
        Ok(Some(PageCounts {
            index: self.index(),
            role,
            pid,
            number,
            began,
            epoch: header.epoch.load(Relaxed),
            current: header.current.load(Relaxed),
            signal,
            stack: header.stack.load(Relaxed),
            restarts: header.restarts.load(Relaxed),
            snapshots: header.snapshots.load(Relaxed),
            inside: header.inside.load(Relaxed),
            inside_samples: header.inside_samples.load(Relaxed),
            replaced: header.replaced.load(Relaxed) != 0,
            all_pipes: header.all_pipes.load(Relaxed),
            idle: WaitCounts::of(&header.idle),
            first: WaitCounts::of(&header.first),
            span: WaitCounts::of(&header.span),
            slow,
            flows: self.read_flows(),
            pipes: (0..pipes as usize).filter_map(|index| self.record_at(index)).map(PipeCounts::of).collect(),
        }))
    }

    fn read_flows(&self) -> Vec<FlowCounts> {
        let flows = (0..self.board.config().flows as usize).map_while(|index| self.flow_at(index));
        let used = flows.map_while(|flow| match flow.direction.load(Relaxed) {
            0 => None,
            direction => Some((flow, direction == 1)),
        });
        used.map(|(flow, sends)| FlowCounts {
            peer: flow.peer.load(Relaxed),
            sends,
            items: flow.items.load(Relaxed),
            bytes: flow.bytes.load(Relaxed),
            fragments: flow.fragments.load(Relaxed),
            wakes: flow.wakes.load(Relaxed),
            copies: flow.copies.load(Relaxed),
            copied: flow.copied.load(Relaxed),
            wait: WaitCounts::of(&flow.wait),
            // SYNC(used): pairs with Allocator::mirror; who sees a use sees its peak.
            arena_used: flow.arena_used.load(Ordering::Acquire),
            arena_peak: flow.arena_peak.load(Relaxed),
            arena_capacity: flow.arena_capacity.load(Relaxed),
            window: flow.window.load(Relaxed),
        })
        .collect()
    }
}

impl PipeCounts {
    fn of(record: &PipeRecord) -> Self {
        let (yielded, base) = record.sequence.read(|| (record.yielded.load(Relaxed), record.base.load(Relaxed)));
        let samples = record.samples.load(Relaxed);
        let counts: [u64; STEPS] = std::array::from_fn(|step| u64::from(record.histogram[step].load(Relaxed)));
        Self {
            label: read_text(&record.label),
            location: read_text(&record.location),
            reader: record.reader.load(Relaxed).checked_sub(1),
            flags: record.flags.load(Relaxed),
            capacity: record.capacity.load(Relaxed),
            yielded,
            items: yielded.wrapping_add(base as u64),
            samples,
            own: record.own.load(Relaxed),
            skipped: record.skipped.load(Relaxed),
            skipped_kinds: record.skipped_kinds(),
            quantiles: (samples > 0).then(|| (quantile(&counts, 0.5), quantile(&counts, 0.99))),
        }
    }
}

/// The middle of the step in which the quantile lies.
fn quantile(counts: &[u64; STEPS], which: f64) -> f64 {
    let wanted = (counts.iter().sum::<u64>() as f64 * which).ceil().max(1.0);
    let mut seen = 0;
    let step = counts.iter().position(|&count| {
        seen += count;
        seen as f64 >= wanted
    });
    middle_of(step.unwrap_or(0))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use super::super::layout::BoardConfig;
    use super::*;

    fn board() -> Arc<Board> {
        let board = Board::create(BoardConfig { pages: 2, flows: 1, pipes: 3 }, true).unwrap();
        board.page(1).unwrap().adopt(Role::Worker, 7);
        board
    }

    #[test]
    fn a_page_that_says_what_none_says_is_refused_by_its_number() {
        let board = board();
        assert_eq!(board.read().unwrap()[0].number, 7);
        let page = board.page(1).unwrap();
        page.header().pipes.store(u32::MAX, Relaxed);
        assert_eq!(
            board.read().unwrap_err().to_string(),
            "page 1 of the counters counts more pipes than there is room for"
        );
        page.header().role.store(77, Relaxed);
        assert!(board.read().unwrap_err().to_string().contains("what no process of a loader does"));
    }

    #[test]
    fn memory_that_may_shrink_is_not_looked_at() {
        if crate::process::portable() {
            return;
        }
        let path = |fd: &dyn AsRawFd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let board = board();
        assert!(Board::observe(&path(&board.fd().unwrap())).is_ok());
        // SAFETY: a name and flags.
        let made = unsafe { libc::memfd_create(c"torchdata-stats".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(made >= 0);
        // SAFETY: just made, and nobody else's.
        let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(made) };
        file.set_len(board.config().total() as u64).unwrap();
        assert!(Board::observe(&path(&file)).unwrap_err().to_string().contains("sealed"));
    }
}
