//! The record of freely dealt items in shared memory: the dispatching process writes it, main reads it when a state is
//! asked for or a process has died.
//!
//! ```text
//! 0          Header (one page)
//! 4096       a ring of u16 entries (see `protocol::DealEntry`); that of position p is number p modulo the capacity
//! ```
//!
//! Nobody waits for anybody. The reader says from which position on it may ask, and what lies before is written over,
//! its pages given back meanwhile. A writer that finds no room records no more, and deals in turn from there on. An entry
//! is written before its item is sent, so whoever has what was made of the item finds the entry. A stream is begun
//! under the epoch 0: a reader that meets that has the entries itself with which the stream is begun.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;

use crate::error::{Corrupted, OpenError};
use crate::integrity::{SEALED_BITS, open, seal};
use crate::process::portable;
use crate::process::region::Region;
use crate::protocol::{DealEntry, Owners};

const HEADER_LEN: usize = 4096;
/// Entries. Only the pages of those that may be asked for cost memory, but on the portable fallback, where room for all
/// is reserved.
const CAPACITY: usize = 1 << 24;
const PORTABLE_CAPACITY: usize = 1 << 20;
/// Entries whose pages are given back together.
const CHUNK: u64 = 32 << 10;

/// Bits of a position beside the low bits of an epoch.
const POSITION_BITS: u32 = 36;
const POSITION: u64 = (1 << POSITION_BITS) - 1;

#[repr(C)]
struct Header {
    /// The epoch, sealed; 0 while one is begun. Written by the writer alone, as the next two.
    epoch: AtomicU64,
    /// The position of the first entry, sealed.
    since: AtomicU64,
    /// The position behind the last entry, sealed.
    head: AtomicU64,
    /// The low bits of the reader's epoch, and from which position on it may ask, sealed. Written by the reader alone.
    needed: CachePadded<AtomicU64>,
}

/// The memory of a record.
#[derive(Debug)]
pub struct DealingRecord {
    region: Region,
}

impl DealingRecord {
    /// Makes an empty record.
    pub fn create() -> Result<Arc<Self>, OpenError> {
        let capacity = if portable() { PORTABLE_CAPACITY } else { CAPACITY };
        Self::with_capacity(capacity)
    }

    fn with_capacity(capacity: usize) -> Result<Arc<Self>, OpenError> {
        let len = HEADER_LEN + capacity * size_of::<AtomicU16>();
        Ok(Arc::new(Self { region: Region::create(len, len)? }))
    }

    /// Maps the record behind a descriptor received from its creator.
    pub fn attach(fd: OwnedFd) -> Result<Arc<Self>, OpenError> {
        let region = Region::attach(fd)?;
        if region.len() <= HEADER_LEN {
            return Err(OpenError::Invalid("it is no record of dealt items"));
        }
        Ok(Arc::new(Self { region }))
    }

    /// The descriptor, to be passed to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// The memory that the record lies in.
    pub fn region(&self) -> &Region {
        &self.region
    }

    fn capacity(&self) -> u64 {
        ((self.region.len() - HEADER_LEN) / size_of::<AtomicU16>()) as u64
    }

    fn header(&self) -> &Header {
        // SAFETY: the region is longer than the header and page-aligned, and stays mapped as long as `self` lives;
        // zeroed memory is a valid header, and all access to it is atomic.
        unsafe { &*self.region.as_mut_ptr().cast::<Header>() }
    }

    fn slot(&self, position: u64) -> &AtomicU16 {
        let number = (position % self.capacity()) as usize;
        // SAFETY: the number is below the capacity, which is what the region has room for; all access is atomic.
        unsafe { &*self.region.as_mut_ptr().add(HEADER_LEN).cast::<AtomicU16>().add(number) }
    }

    /// Says from which position of an epoch on the reader may ask.
    pub fn need_from(&self, epoch: u32, position: u64) {
        self.header().needed.store(needed_word(epoch, position), Ordering::Relaxed);
    }

    /// Returns the entries of an epoch from a position on; None if the writer has not begun that epoch, or not there.
    pub fn read(&self, epoch: u32, from: u64, readers: usize) -> Result<Option<Owners>, Corrupted> {
        let header = self.header();
        // SYNC(record-begin): pairs with RecordWriter::begin.
        if open(header.epoch.load(Ordering::Acquire)) != Some(u64::from(epoch)) {
            return Ok(None);
        }
        // SYNC(record): pairs with RecordWriter::push.
        let head = open(header.head.load(Ordering::Acquire));
        let since = open(header.since.load(Ordering::Relaxed));
        let (Some(head), Some(since)) = (head, since) else {
            return Err(Corrupted("the record of dealt items has no beginning or end"));
        };
        if from < since {
            return Ok(None);
        }
        // From the last entry on, at least: it says whether items are dealt in turn behind it.
        let first = from.min(head.saturating_sub(1)).max(since);
        let raw: Vec<u16> = (first..head).map(|position| self.slot(position).load(Ordering::Relaxed)).collect();
        // SYNC(record-begin): pairs with the fence of RecordWriter::begin, should it have begun anew meanwhile.
        fence(Ordering::Acquire);
        if open(header.epoch.load(Ordering::Relaxed)) != Some(u64::from(epoch)) {
            return Ok(None);
        }
        let entries: Option<Vec<DealEntry>> = raw.into_iter().map(|raw| DealEntry::from_raw(raw, readers)).collect();
        let entries = entries.ok_or(Corrupted("the record of dealt items names a worker that there is not"))?;
        Ok(Some(Owners { since: from, entries: Owners { since: first, entries }.from(from) }))
    }
}

fn needed_word(epoch: u32, position: u64) -> u64 {
    seal(u64::from(epoch) << POSITION_BITS | position.min(POSITION))
}

/// The writer's end of a record.
#[derive(Debug)]
pub struct RecordWriter {
    record: Arc<DealingRecord>,
    epoch: u32,
    head: u64,
    /// From where on the reader may ask, as last looked at.
    needed: u64,
    /// The pages of entries before this position were given back.
    given_back: u64,
}

impl RecordWriter {
    /// The writer of a record, which has one at a time.
    pub fn new(record: Arc<DealingRecord>) -> Self {
        Self { record, epoch: 0, head: 0, needed: 0, given_back: 0 }
    }

    /// Begins an epoch with the entries of an earlier run of it. False if there are more than the record holds.
    #[must_use]
    pub fn begin(&mut self, epoch: u32, owners: &Owners) -> bool {
        if owners.entries.len() as u64 >= self.record.capacity() {
            return false;
        }
        let header = self.record.header();
        header.epoch.store(seal(0), Ordering::Relaxed);
        // SYNC(record-begin): pairs with the fence of DealingRecord::read.
        fence(Ordering::Release);
        (self.epoch, self.head, self.needed) = (epoch, owners.since, owners.since);
        self.given_back = owners.since.next_multiple_of(CHUNK);
        header.since.store(seal(owners.since), Ordering::Relaxed);
        header.head.store(seal(owners.since), Ordering::Relaxed);
        owners.entries.iter().for_each(|&owner| self.push(owner));
        // SYNC(record-begin): pairs with DealingRecord::read.
        self.record.header().epoch.store(seal(u64::from(epoch)), Ordering::Release);
        true
    }

    /// Adds an entry.
    #[inline]
    pub fn push(&mut self, owner: DealEntry) {
        self.record.slot(self.head).store(owner.raw(), Ordering::Relaxed);
        self.head += 1;
        // SYNC(record): pairs with DealingRecord::read.
        self.record.header().head.store(seal(self.head), Ordering::Release);
    }

    /// Whether there is room for two entries at most: a pass that begins, and that items are dealt in turn from there on.
    #[inline]
    pub fn is_full(&mut self) -> bool {
        if self.head % CHUNK == 0 {
            self.give_back();
        }
        let room = |needed: u64| needed + self.record.capacity() - self.head;
        room(self.needed) <= 2 && {
            self.look();
            self.needed + self.record.capacity() - self.head <= 2
        }
    }

    /// Looks from where on the reader may ask. A damaged word, or one of another epoch, says nothing.
    fn look(&mut self) {
        let word = open(self.record.header().needed.load(Ordering::Relaxed)).unwrap_or_default();
        let epoch = u64::from(self.epoch) & (1 << (SEALED_BITS - POSITION_BITS)) - 1;
        if word >> POSITION_BITS == epoch {
            self.needed = self.needed.max((word & POSITION).min(self.head));
        }
    }

    #[cold]
    fn give_back(&mut self) {
        self.look();
        let capacity = self.record.capacity();
        while !portable() && self.given_back + CHUNK <= self.needed {
            let number = (self.given_back % capacity) as usize;
            let size = size_of::<AtomicU16>();
            // Pages that stay cost memory, and nothing else.
            let _ = self.record.region.punch(HEADER_LEN + number * size, CHUNK as usize * size);
            self.given_back += CHUNK;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, DealEntry, DealingRecord, HEADER_LEN, Owners, RecordWriter};

    fn readers(numbers: impl IntoIterator<Item = u16>) -> Vec<DealEntry> {
        numbers.into_iter().map(DealEntry::Reader).collect()
    }

    #[test]
    fn entries_are_found_from_any_position_of_their_epoch() {
        let record = DealingRecord::create().unwrap();
        let mut writer = RecordWriter::new(record.clone());
        let read = |epoch, from| record.read(epoch, from, 3).unwrap();
        assert_eq!(read(1, 0), None, "nothing was begun");
        assert!(writer.begin(1, &Owners { since: 5, entries: readers([2, 0]) }));
        writer.push(DealEntry::Reader(1));
        assert_eq!(read(1, 5), Some(Owners { since: 5, entries: readers([2, 0, 1]) }));
        assert_eq!(read(1, 7), Some(Owners { since: 7, entries: readers([1]) }));
        assert_eq!(read(1, 9), Some(Owners { since: 9, entries: vec![] }));
        assert_eq!((read(1, 4), read(2, 5)), (None, None));
        writer.push(DealEntry::InTurn);
        assert_eq!(read(1, 20), Some(Owners { since: 20, entries: vec![DealEntry::InTurn] }));
        assert!(record.read(1, 5, 2).is_err(), "there is no third reader");
        assert!(writer.begin(2, &Owners::default()));
        assert_eq!((read(1, 5), read(2, 0)), (None, Some(Owners::default())));
    }

    #[test]
    fn a_record_is_full_until_the_reader_needs_less_of_it() {
        let record = DealingRecord::with_capacity(8).unwrap();
        let mut writer = RecordWriter::new(record.clone());
        assert!(!writer.begin(3, &Owners { since: 0, entries: readers([0; 8]) }));
        assert!(writer.begin(3, &Owners { since: 2, entries: readers([0; 5]) }));
        assert!(!writer.is_full());
        writer.push(DealEntry::Reader(0));
        assert!(writer.is_full());
        record.need_from(2, 6);
        assert!(writer.is_full(), "that was said in another epoch");
        record.need_from(3, 6);
        assert!(!writer.is_full());
        (0..4).for_each(|_| writer.push(DealEntry::Reader(1)));
        let found = record.read(3, 6, 2).unwrap().unwrap();
        assert_eq!(found.entries, readers([0, 0, 1, 1, 1, 1]));
    }

    #[test]
    fn pages_of_entries_that_nobody_needs_go_back() {
        let record = DealingRecord::create().unwrap();
        let mut writer = RecordWriter::new(record.clone());
        assert!(writer.begin(1, &Owners::default()));
        for position in 0..20 * CHUNK {
            assert!(!writer.is_full());
            writer.push(DealEntry::Reader(0));
            record.need_from(1, position);
        }
        let resident = 512 * rustix::fs::fstat(record.fd()).unwrap().st_blocks as usize;
        let all = HEADER_LEN + 40 * CHUNK as usize;
        assert!(crate::process::portable() || resident < all / 2, "{resident} bytes of {all}");
        assert_eq!(record.read(1, 20 * CHUNK - 2, 1).unwrap().unwrap().entries, readers([0, 0]));
    }
}
