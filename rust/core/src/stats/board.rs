//! Manages boards, which contain the counters of all processes of a loader in shared memory.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::clock::nanoseconds;
use super::flow::{FlowRef, WaitRef};
use super::layout::{BoardConfig, BoardHeader, Flow, MAGIC, MEMORY_PAGE, PageHeader, PipeRecord, VERSION, write_text};
use crate::error::{self, OpenError};
use crate::process::fork;
use crate::process::inherited::Descriptor;
use crate::process::region::Region;

/// The value of `generation` in a board that is open only for reading. With this value, `is_of_this_process` returns
/// false.
const NO_PROCESS: u64 = u64::MAX;

/// The maximum size in bytes of another loader's board, because reading a board allocates memory.
const LARGEST_READABLE: usize = 512 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Role {
    Nobody = 0,
    /// The main process, which owns the loader.
    Main = 1,
    /// A worker process, which runs a replica of the graph.
    Worker = 2,
    /// The dispatching process, which distributes items to the workers.
    Dispatcher = 3,
}

/// The counters of all processes of a loader, in shared memory. In a child that user code has forked, the memory of the
/// board contains only zeros.
#[derive(Debug)]
pub struct Board {
    pub region: Region,
    pub config: BoardConfig,
    /// Other programs find the board in `/proc` through this descriptor, which only the creator of the board has.
    fd: Option<Descriptor>,
    generation: u64,
}

impl Board {
    /// `full` determines whether the processes measure the time of each pipe.
    pub fn create(config: BoardConfig, full: bool) -> Result<Arc<Self>, OpenError> {
        let generation = fork::generation();
        let region = Region::create("torchdata-stats", config.total(), config.total())?;
        region.mapping.wipe_on_fork();
        let fd = Some(Descriptor::note(region.take_descriptor().expect("a new region has a descriptor")));
        let board = Self { region, config, fd, generation };
        let header = board.header();
        header.magic.store(MAGIC, Relaxed);
        header.pages.store(config.pages, Relaxed);
        header.flows.store(config.flows, Relaxed);
        header.pipes.store(config.pipes, Relaxed);
        header.full.store(u32::from(full), Relaxed);
        header.main.store(std::process::id(), Relaxed);
        header.made.store(nanoseconds(), Relaxed);
        // SYNC(board): pairs with `checked`.
        header.version.store(VERSION, Ordering::Release);
        Ok(Arc::new(board))
    }

    pub fn attach(fd: OwnedFd) -> Result<Arc<Self>, OpenError> {
        let generation = fork::generation();
        let region = Region::attach(fd)?;
        region.mapping.wipe_on_fork();
        drop(region.take_descriptor());
        Self::checked(region, generation)
    }

    /// Maps the board of another loader, possibly of another user, for reading.
    pub fn observe(path: &Path) -> Result<Arc<Self>, OpenError> {
        // Without O_NONBLOCK, opening a named pipe would block until another process opens the pipe for writing.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let region = Region::observe(&file.map_err(error::system("cannot open the counters"))?)?;
        let board = Self::checked(region, NO_PROCESS)?;
        if board.config.total() <= LARGEST_READABLE {
            Ok(board)
        } else {
            Err(OpenError::Invalid("it is larger than any board"))
        }
    }

    fn checked(region: Region, generation: u64) -> Result<Arc<Self>, OpenError> {
        if region.len() < MEMORY_PAGE {
            return Err(OpenError::Invalid("it is smaller than a header"));
        }
        let config = BoardConfig { pages: 0, flows: 0, pipes: 0 };
        let mut board = Self { region, config, fd: None, generation };
        let header = board.header();
        // SYNC(board): pairs with `create`.
        let version = header.version.load(Ordering::Acquire);
        if header.magic.load(Relaxed) != MAGIC || version == 0 {
            return Err(OpenError::Invalid("the magic number differs"));
        }
        if version != VERSION {
            return Err(OpenError::Version { found: version, expected: VERSION });
        }
        let config = BoardConfig {
            pages: header.pages.load(Relaxed),
            flows: header.flows.load(Relaxed),
            pipes: header.pipes.load(Relaxed),
        };
        if !config.is_sensible() || config.total() != board.region.len() {
            return Err(OpenError::Invalid("its sizes are inconsistent"));
        }
        board.config = config;
        Ok(Arc::new(board))
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().and_then(Descriptor::get)
    }

    /// Closes the descriptor of the board. After a call of `close`, no code may use a descriptor that `fd` has
    /// returned.
    pub fn close(&self) {
        self.fd.iter().for_each(Descriptor::close);
    }

    pub fn is_full(&self) -> bool {
        self.header().full.load(Relaxed) != 0
    }

    pub fn want_large_snapshots(&self) {
        self.header().wants_large.store(1, Relaxed);
    }

    pub fn wants_large_snapshots(&self) -> bool {
        self.header().wants_large.load(Relaxed) != 0
    }

    /// Returns the size in bytes of the largest snapshot that was not sent because of its size, or 0.
    pub fn oversized(self: &Arc<Self>) -> u64 {
        let pages = (0..self.config.pages as usize).filter_map(|index| self.page(index));
        pages.map(|page| page.header().oversized.load(Relaxed)).max().unwrap_or(0)
    }

    pub fn made(&self) -> (u32, u64) {
        (self.header().main.load(Relaxed), self.header().made.load(Relaxed))
    }

    /// Returns false in a forked child that has inherited the board, and for a board that is open only for reading.
    pub fn is_of_this_process(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(super) fn header(&self) -> &BoardHeader {
        // SAFETY: `create` and `checked` ensure that the region has at least one memory page. The region is
        // page-aligned, and `self` keeps the region mapped. All bit patterns are valid headers, and all access to
        // headers is atomic.
        unsafe { &*self.region.as_mut_ptr().cast::<BoardHeader>() }
    }

    pub fn page(self: &Arc<Self>, index: usize) -> Option<PageRef> {
        (index < self.config.pages as usize).then(|| PageRef { board: Arc::clone(self), index })
    }
}

/// The part of a board that belongs to one process. Only the process that owns the page may write to the page.
#[derive(Debug, Clone)]
pub struct PageRef {
    pub(super) board: Arc<Board>,
    pub(super) index: usize,
}

impl PageRef {
    pub(super) fn at<T>(&self, offset: usize) -> *const T {
        let page = MEMORY_PAGE + self.index * self.board.config.page_len();
        // SAFETY: callers pass offsets inside a page. `create` and `checked` ensure that the region has all pages.
        unsafe { self.board.region.as_mut_ptr().add(page + offset).cast_const().cast::<T>() }
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        let count = self.board.config.page_len() / size_of::<AtomicU64>();
        // SAFETY: the slice covers exactly the page and is aligned. All fields of the page are atomic, so they can be
        // read as atomic words.
        unsafe { std::slice::from_raw_parts(self.at::<AtomicU64>(0), count) }
    }

    pub(super) fn header(&self) -> &PageHeader {
        // SAFETY: the header is at the start of an aligned page. All access is atomic, and all bit patterns are valid.
        unsafe { &*self.at::<PageHeader>(0) }
    }

    pub(super) fn flow_at(&self, index: usize) -> Option<&Flow> {
        let offset = self.board.config.flows_at() + index * size_of::<Flow>();
        // SAFETY: the checked index is inside the page. The offset is a multiple of 64, and all access is atomic.
        (index < self.board.config.flows as usize).then(|| unsafe { &*self.at::<Flow>(offset) })
    }

    pub(super) fn record_at(&self, index: usize) -> Option<&PipeRecord> {
        let offset = size_of::<PageHeader>() + index * size_of::<PipeRecord>();
        // SAFETY: the checked index is inside the page. The record of a pipe is aligned, and all access to it is
        // atomic.
        (index < self.board.config.pipes as usize).then(|| unsafe { &*self.at::<PipeRecord>(offset) })
    }

    /// Assigns this page to the calling process. The counts of an earlier process that used the page are kept.
    pub fn adopt(&self, role: Role, number: u32) {
        let header = self.header();
        let now = nanoseconds();
        header.sequence.change(|| {
            if header.pid.load(Relaxed) != 0 {
                header.restarts.store(header.restarts.load(Relaxed).wrapping_add(1), Relaxed);
            }
            header.pid.store(std::process::id(), Relaxed);
            header.number.store(number, Relaxed);
            header.began.store(now, Relaxed);
            header.signal.store(0, Relaxed);
            header.current.store(0, Relaxed);
            header.role.store(role as u32, Relaxed);
        });
        let flows =
            (0..self.board.config.flows as usize).filter_map(|index| self.flow_at(index)).map(|flow| &flow.wait);
        flows.chain([&header.idle, &header.first, &header.span]).for_each(|wait| wait.end(now));
    }

    /// Returns the counters of one end of a link. `peer` is the page number of the process at the opposite end.
    pub fn flow(&self, index: usize, peer: u32, sends: bool) -> Option<FlowRef> {
        let flow = self.flow_at(index)?;
        flow.peer.store(peer, Relaxed);
        flow.direction.store(if sends { 1 } else { 2 }, Relaxed);
        // SAFETY: the flow is in the memory of the board, which the `Arc` keeps mapped.
        Some(unsafe { FlowRef::new(flow, Arc::clone(&self.board) as _) })
    }

    /// Returns the counter for the time that this process waits for commands.
    pub fn idle(&self) -> WaitRef {
        // SAFETY: the counter is in the memory of the board, which the `Arc` keeps mapped.
        unsafe { WaitRef::new(&self.header().idle, Arc::clone(&self.board) as _) }
    }

    pub fn begin_first(&self) {
        self.header().first.begin(nanoseconds());
    }

    pub fn end_first(&self) {
        self.header().first.end(nanoseconds());
    }

    pub fn set_first_whom(&self, flow: Option<usize>) {
        self.header().first.whom.store(flow.map_or(0, |flow| flow as u32 + 1), Relaxed);
    }

    /// Begins to measure an epoch. The epoch's number is `epoch`, or the next number if `epoch` is None.
    pub fn begin_span(&self, epoch: Option<u32>) {
        let span = &self.header().span;
        span.end(nanoseconds());
        let next = || self.header().epoch.load(Relaxed).wrapping_add(1);
        self.header().epoch.store(epoch.unwrap_or_else(next), Relaxed);
        span.begin(nanoseconds());
    }

    pub fn end_span(&self) {
        self.header().span.end(nanoseconds());
    }

    /// Announces that this process writes its stack to `descriptor` when another program sends `signal`. If `signal` is
    /// 0, this process writes no stacks.
    pub fn set_stack(&self, signal: u32, descriptor: u32) {
        self.header().stack.store(descriptor, Relaxed);
        // SYNC(stack): pairs with the readers' load. A reader that sees the signal also sees the descriptor.
        self.header().signal.store(signal, Ordering::Release);
    }

    pub fn snapshot_sent(&self) {
        let count = &self.header().snapshots;
        count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
    }

    pub fn set_oversized(&self, bytes: u64) {
        self.header().oversized.store(bytes, Relaxed);
    }

    /// Adds `nanoseconds` to the page's total: the duration of a measured call, and an estimate for the unmeasured
    /// calls before it.
    pub fn inside(&self, nanoseconds: u64) {
        super::layout::add(&self.header().inside, nanoseconds);
        super::layout::add(&self.header().inside_samples, 1);
    }

    pub fn set_pipes(&self, all: usize) {
        let header = self.header();
        header.all_pipes.store(all as u32, Relaxed);
        // SYNC(pipes): pairs with `PageRef::counted_pipes`. A reader that sees the new number of pipes also sees the
        // new records of these pipes.
        header.pipes.store(all.min(self.board.config.pipes as usize) as u32, Ordering::Release);
    }

    /// Initializes the record of the pipe with the number `index`. `reader` is the number of the pipe that reads the
    /// items of this pipe. Returns None if the page lacks a record for this index.
    pub fn pipe(
        &self,
        index: usize,
        reader: Option<usize>,
        flags: u32,
        capacity: u64,
        texts: [&str; 2],
    ) -> Option<PipeRef> {
        let record = self.record_at(index)?;
        record.sequence.change(|| {
            record.reader.store(reader.map_or(0, |reader| reader as u32 + 1), Relaxed);
            record.flags.store(flags, Relaxed);
            record.capacity.store(capacity, Relaxed);
            write_text(&record.label, texts[0]);
            write_text(&record.location, texts[1]);
        });
        Some(PipeRef { page: self.clone(), index })
    }

    pub fn pipe_at(&self, index: usize) -> Option<PipeRef> {
        self.record_at(index).map(|_| PipeRef { page: self.clone(), index })
    }

    pub fn is_full(&self) -> bool {
        self.board.is_full()
    }
}

#[derive(Debug, Clone)]
pub struct PipeRef {
    pub page: PageRef,
    index: usize,
}

impl PipeRef {
    pub fn record(&self) -> &PipeRecord {
        self.page.record_at(self.index).expect("checked when it was named")
    }

    /// Returns the shared word that identifies the running pipe, and the value that this word has while the pipe of
    /// `self` runs.
    pub fn running(&self) -> (&AtomicU32, u32) {
        (&self.page.header().current, self.index as u32 + 1)
    }
}
