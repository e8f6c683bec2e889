//! The log of one process.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::error::{self, OpenError};
use crate::process::fork;
use crate::process::inherited::Descriptor;
use crate::process::region::Region;

/// "tdrtrace" in ASCII.
const MAGIC: u64 = u64::from_le_bytes(*b"tdrtrace");
/// Changes whenever the layout does.
const VERSION: u32 = 1;
/// The most records of a log.
const MOST: u64 = 1 << 28;

/// The event that a record tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A pipe was asked for an item. `what`: its number, and 2^32 if it gave none; `number`: which item; `stream`: of
    /// which iterator.
    Item = 1,
    /// An item was encoded and sent. `what`: the page of the reader; `number`: which item of the `stream`.
    Sent = 2,
    /// An item was received and decoded. `what`: the page of the sender; `number`: which item of the `stream`.
    Received = 3,
    /// This process waited for an item of the process of page `what`.
    WaitForItem = 4,
    /// This process waited until the process of page `what` wanted more, or for memory.
    WaitForRoom = 5,
    /// Text: `what` is the number of what it names, `number` its length in bytes, which follow in records of their own.
    Text = 6,
    /// The bytes of a text, all but the first eight of the record.
    Bytes = 7,
}

/// What happened. Times are nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    /// Its kind.
    pub kind: Kind,
    /// When it began.
    pub begin: u64,
    /// When it ended.
    pub end: u64,
    /// See [`Kind`].
    pub what: u64,
    /// See [`Kind`].
    pub number: u64,
    /// See [`Kind`].
    pub stream: u64,
    /// Its loader.
    pub loader: u64,
}

/// The beginning of a log.
#[derive(Debug)]
#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    /// Whether nothing more is to be written. Set by main.
    stopped: AtomicU32,
    capacity: AtomicU64,
    /// Records that were written, or left out for want of room.
    used: AtomicU64,
    /// Who writes.
    pid: AtomicU32,
}

/// A record as it lies in memory. Its kind is written last: one that was never finished has none.
#[derive(Debug)]
#[repr(C)]
struct Slot {
    kind: AtomicU32,
    thread: AtomicU32,
    words: [AtomicU64; 7],
}

const _: () = assert!(size_of::<Header>() == 64 && size_of::<Slot>() == 64);

/// A log in memory that it keeps mapped.
#[derive(Debug)]
pub struct Log {
    region: Region,
    capacity: u64,
    fd: Option<Descriptor>,
    generation: u64,
}

impl Log {
    /// The name of logs, by which those who may look into their makers' descriptors find them.
    pub const NAME: &str = "torchdata-trace";

    /// Makes a log of so many records, at most 2^28.
    pub fn create(capacity: u64) -> Result<Arc<Self>, OpenError> {
        Self::create_named(Self::NAME, capacity)
    }

    /// The same under a name of its own.
    pub fn create_named(name: &str, capacity: u64) -> Result<Arc<Self>, OpenError> {
        let capacity = capacity.clamp(1, MOST);
        let generation = fork::generation();
        let len = size_of::<Header>() + capacity as usize * size_of::<Slot>();
        let region = Region::create_named(name, len, len)?;
        region.mapping().wipe_on_fork();
        let fd = region.take_descriptor().map(Descriptor::note);
        let log = Self { region, capacity, fd, generation };
        let header = log.header();
        header.magic.store(MAGIC, Relaxed);
        header.capacity.store(capacity, Relaxed);
        // SYNC(log): pairs with `open`.
        header.version.store(VERSION, Ordering::Release);
        Ok(Arc::new(log))
    }

    /// Maps a log of another process to write it.
    pub fn open(path: &Path) -> Result<Arc<Self>, OpenError> {
        let file =
            OpenOptions::new().read(true).write(true).open(path).map_err(error::system("cannot open the trace"))?;
        let generation = fork::generation();
        let region = Region::attach(OwnedFd::from(file))?;
        region.mapping().wipe_on_fork();
        drop(region.take_descriptor());
        if region.len() < size_of::<Header>() {
            return Err(OpenError::Invalid("it is smaller than a header"));
        }
        let mut log = Self { region, capacity: 0, fd: None, generation };
        let header = log.header();
        // SYNC(log): pairs with `create`.
        let version = header.version.load(Ordering::Acquire);
        if header.magic.load(Relaxed) != MAGIC {
            return Err(OpenError::Invalid("the magic number differs"));
        }
        if version != VERSION {
            return Err(OpenError::Version { found: version, expected: VERSION });
        }
        let capacity = header.capacity.load(Relaxed);
        if capacity > MOST || size_of::<Header>() + capacity as usize * size_of::<Slot>() != log.region.len() {
            return Err(OpenError::Invalid("its sizes contradict each other"));
        }
        log.capacity = capacity;
        Ok(Arc::new(log))
    }

    /// The descriptor by which others find it, in the process that made it.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().and_then(Descriptor::get)
    }

    /// The memory that the log lies in.
    pub fn region(&self) -> &Region {
        &self.region
    }

    fn header(&self) -> &Header {
        // SAFETY: the region has at least a header, page-aligned and mapped as long as `self`; all bit patterns are
        // valid and all access is atomic.
        unsafe { &*self.region.as_mut_ptr().cast::<Header>() }
    }

    fn slot(&self, index: u64) -> &Slot {
        assert!(index < self.capacity, "a record outside the log");
        // SAFETY: inside the region, by the check above and that of the sizes; aligned to 64 bytes; atomic.
        unsafe { &*self.region.as_mut_ptr().add(size_of::<Header>()).cast::<Slot>().add(index as usize) }
    }

    /// Takes the log for this process.
    pub fn adopt(&self) {
        self.header().pid.store(std::process::id(), Relaxed);
    }

    /// Whether this process may write: main has not stopped it, and nobody has forked since.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.header().stopped.load(Relaxed) == 0 && self.generation == fork::generation()
    }

    /// Lets nobody write any more.
    pub fn stop(&self) {
        self.header().stopped.store(1, Relaxed);
    }

    /// Writes a record, unless the log is full.
    pub fn push(&self, record: &Record) {
        let words = [record.begin, record.end, record.what, record.number, record.stream, record.loader, 0];
        if let Some(slot) = self.claim(1) {
            self.write(slot, record.kind, words);
        }
    }

    /// Writes what number `what` is called.
    pub fn push_text(&self, what: u64, text: &str) {
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(56).collect();
        let Some(first) = self.claim(1 + pieces.len() as u64) else { return };
        self.write(first, Kind::Text, [0, 0, what, text.len() as u64, 0, 0, 0]);
        for (index, piece) in pieces.into_iter().enumerate() {
            let mut bytes = [0; 56];
            bytes[..piece.len()].copy_from_slice(piece);
            let words =
                std::array::from_fn(|word| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[8 * word + byte])));
            self.write(first + 1 + index as u64, Kind::Bytes, words);
        }
    }

    /// Takes room for so many records, one behind the other.
    fn claim(&self, count: u64) -> Option<u64> {
        let first = self.header().used.fetch_add(count, Relaxed);
        (first.saturating_add(count) <= self.capacity).then_some(first)
    }

    fn write(&self, index: u64, kind: Kind, words: [u64; 7]) {
        let slot = self.slot(index);
        slot.thread.store(thread_number(), Relaxed);
        slot.words.iter().zip(words).for_each(|(word, value)| word.store(value, Relaxed));
        // SYNC(record): pairs with `read`; who sees the kind sees the rest.
        slot.kind.store(kind as u32, Ordering::Release);
    }

    /// Returns the writer, the number of records that were left out, and the finished ones: 64 bytes each, as they lie
    /// in memory.
    pub fn read(&self) -> (u32, u64, Vec<u8>) {
        let (_, bytes) = self.read_on(0, true);
        let (pid, left_out) = self.counts();
        (pid, left_out, bytes)
    }

    /// Returns the writer, and the number of records that were left out.
    pub fn counts(&self) -> (u32, u64) {
        let header = self.header();
        (header.pid.load(Relaxed), header.used.load(Relaxed).saturating_sub(self.capacity))
    }

    /// Returns the records from the `position`th on, and the position behind them. It ends before the first one that is
    /// not finished, unless it is to `skip` those.
    pub fn read_on(&self, position: u64, skip: bool) -> (u64, Vec<u8>) {
        let end = self.header().used.load(Relaxed).min(self.capacity);
        let mut bytes = Vec::with_capacity(64 * end.saturating_sub(position) as usize);
        for index in position..end {
            let slot = self.slot(index);
            // SYNC(record): pairs with `write`.
            let kind = slot.kind.load(Ordering::Acquire);
            if kind == 0 {
                if skip {
                    continue;
                }
                return (index, bytes);
            }
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(&slot.thread.load(Relaxed).to_ne_bytes());
            slot.words.iter().for_each(|word| bytes.extend_from_slice(&word.load(Relaxed).to_ne_bytes()));
        }
        (end.max(position), bytes)
    }
}

/// The number by which the system knows this thread.
fn thread_number() -> u32 {
    thread_local!(static NUMBER: Cell<(u32, u32)> = const { Cell::new((0, 0)) });
    NUMBER.with(|known| {
        let (process, number) = known.get();
        let own = std::process::id();
        if process == own {
            return number;
        }
        let number = system_thread_number();
        known.set((own, number));
        number
    })
}

#[cfg(target_os = "linux")]
fn system_thread_number() -> u32 {
    // SAFETY: asks for a number.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

#[cfg(not(target_os = "linux"))]
fn system_thread_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> Record {
        Record { kind: Kind::Item, begin: number, end: number + 1, what: 7, number, stream: 1, loader: 2 }
    }

    fn words(bytes: &[u8]) -> Vec<[u64; 8]> {
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
        bytes.chunks(64).map(|one| std::array::from_fn(|i| word(&one[8 * i..8 * i + 8]))).collect()
    }

    #[test]
    fn a_full_log_counts_what_it_leaves_out() {
        let log = Log::create(3).unwrap();
        (0..5).for_each(|number| log.push(&record(number)));
        let (_, left_out, bytes) = log.read();
        assert_eq!(left_out, 2);
        assert_eq!(words(&bytes).iter().map(|one| one[4]).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_reader_goes_on_where_it_was_and_waits_for_a_record_that_is_not_finished() {
        let log = Log::create_named("torchdata-trace-of-a-test", 8).unwrap();
        log.push(&record(0));
        let (next, bytes) = log.read_on(0, false);
        assert_eq!((next, words(&bytes)[0][4]), (1, 0));
        log.claim(1).unwrap(); // by who is killed before it is written
        log.push(&record(2));
        assert_eq!(log.read_on(1, false), (1, Vec::new()));
        let (next, bytes) = log.read_on(1, true);
        assert_eq!((next, bytes.len(), words(&bytes)[0][4]), (3, 64, 2));
        assert_eq!(log.read_on(3, true), (3, Vec::new()));
        assert_eq!(log.read_on(9, true).0, 9);
    }

    #[test]
    fn another_mapping_writes_what_the_maker_reads_until_it_is_stopped() {
        use std::os::fd::AsRawFd;
        let log = Log::create(8).unwrap();
        let path = format!("/proc/self/fd/{}", log.fd().unwrap().as_raw_fd());
        if !Path::new(&path).exists() {
            return;
        }
        let other = Log::open(Path::new(&path)).unwrap();
        other.adopt();
        other.push_text(5, &"é".repeat(40));
        let (pid, _, bytes) = log.read();
        assert_eq!(pid, std::process::id());
        let found = words(&bytes);
        assert_eq!((found[0][3], found[0][4], found.len()), (5, 80, 3));
        assert!(other.is_on());
        log.stop();
        assert!(!other.is_on());
    }

    #[test]
    fn threads_share_a_log() {
        let log = Log::create(4000).unwrap();
        std::thread::scope(|scope| {
            for part in 0..4 {
                let log = &log;
                scope.spawn(move || (0..1000).for_each(|number| log.push(&record(1000 * part + number))));
            }
        });
        let mut numbers: Vec<u64> = words(&log.read().2).iter().map(|one| one[4]).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..4000));
    }
}
