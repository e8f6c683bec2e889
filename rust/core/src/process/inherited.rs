//! Drops mappings and descriptors that a forked child has inherited but does not need.
//!
//! The system frees shared memory when the last process unmaps it, so inherited mappings would keep the memory
//! allocated.
//!
//! The list of mappings is accessed without a lock, because another thread could hold the lock during a fork.

use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

const SMALLEST_PAGE: usize = 4096;

const FREE: u32 = 0;
const OPAQUE: u32 = 1;
const MAPPING: u32 = 2;
const DESCRIPTOR: u32 = 3;
/// The state of a mapping that `wipe_on_fork` has marked.
const OWN_MAPPING: u32 = 4;

/// Describes one mapping or descriptor. An entry is never freed, but an unused entry can be reused for another mapping.
#[derive(Debug)]
struct InheritedEntry {
    next: *const InheritedEntry,
    state: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
    /// The number of pointers into the mapping that are in use. A forked child keeps the mapping as long as any pointer
    /// into the mapping is in use.
    pins: AtomicUsize,
}

// SAFETY: `next` does not change after other threads can see the entry, and entries are never freed. All other fields
// are atomic.
unsafe impl Sync for InheritedEntry {}
// SAFETY: all access to a published entry is shared and atomic, so any thread may own the entry.
unsafe impl Send for InheritedEntry {}

static FIRST: AtomicPtr<InheritedEntry> = AtomicPtr::new(ptr::null_mut());

fn entries() -> impl Iterator<Item = &'static InheritedEntry> {
    // SYNC(entries): pairs with `note`. A thread that reads a pointer to an entry also reads the entry's `next`.
    let mut next: *const InheritedEntry = FIRST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: the pointer is null or points to an entry, and entries are never freed.
        let entry = unsafe { next.as_ref() }?;
        next = entry.next;
        Some(entry)
    })
}

fn note(state: u32, start: usize, len: usize) -> &'static InheritedEntry {
    // SYNC(noted): pairs with the stores in `Mapping::drop` and `Descriptor::drop`, which set a state to `FREE`.
    let taken = entries()
        .find(|entry| entry.state.compare_exchange(FREE, OPAQUE, Ordering::Acquire, Ordering::Relaxed).is_ok());
    let entry = taken.unwrap_or_else(|| {
        let entry: *mut InheritedEntry = Box::leak(Box::new(InheritedEntry {
            next: FIRST.load(Ordering::Relaxed), // the exchange below provides the ordering
            state: AtomicU32::new(OPAQUE),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            pins: AtomicUsize::new(0),
        }));
        loop {
            // SAFETY: the entry is not published yet, so no other thread has a reference to it.
            let next = unsafe { (*entry).next }.cast_mut();
            // SYNC(entries): pairs with `entries`.
            match FIRST.compare_exchange(next, entry, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: entries are never freed, and after the publication all references to the entry are shared.
                Ok(_) => return unsafe { &*entry },
                // SAFETY: the exchange failed, so the entry is still unpublished, and no other thread refers to it.
                Err(now) => unsafe { (*entry).next = now },
            }
        }
    });
    entry.start.store(start, Ordering::Relaxed);
    entry.len.store(len, Ordering::Relaxed);
    entry.pins.store(0, Ordering::Relaxed);
    // SYNC(noted): pairs with `drop_all_but` and `wipe_what_is_the_parents`.
    entry.state.store(state, Ordering::Release);
    entry
}

/// Registers a memory mapping in the list of objects that forked children inherit. The owner of the memory must drop
/// this object before unmapping the memory.
#[derive(Debug)]
pub struct Mapping(&'static InheritedEntry);

impl Mapping {
    pub fn note(start: *const u8, len: usize) -> Self {
        Self(note(MAPPING, start as usize, len))
    }

    /// Makes future forked children keep the mapping until `unpin` is called.
    #[inline]
    pub fn pin(&self) {
        self.0.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes each forked child replace the mapping with zeros before any other code runs in the child.
    pub fn wipe_on_fork(&self) {
        // SYNC(noted): pairs with `wipe_what_is_the_parents`.
        self.0.state.store(OWN_MAPPING, Ordering::Release);
    }

    #[inline]
    pub fn unpin(&self) {
        self.0.pins.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SYNC(noted): pairs with `note`, which fills a free entry.
        self.0.state.store(FREE, Ordering::Release);
    }
}

#[derive(Debug)]
pub struct Descriptor(&'static InheritedEntry);

impl Descriptor {
    pub fn note(fd: OwnedFd) -> Self {
        Self(note(DESCRIPTOR, fd.into_raw_fd() as usize, 0))
    }

    pub fn get(&self) -> Option<BorrowedFd<'_>> {
        let open = self.0.state.load(Ordering::Relaxed) == DESCRIPTOR;
        // SAFETY: the descriptor is open while the state is `DESCRIPTOR`. In a forked child, no other thread runs while
        // `drop_all_but` closes descriptors.
        open.then(|| unsafe { BorrowedFd::borrow_raw(self.0.start.load(Ordering::Relaxed) as i32) })
    }
}

impl Descriptor {
    /// Closes the descriptor. During and after a call of `close`, no code may use a descriptor that `get` has returned.
    pub fn close(&self) {
        // The state changes before the descriptor is closed, because a forked child could otherwise close a new file
        // that has reused the descriptor's number.
        if self.0.state.compare_exchange(DESCRIPTOR, OPAQUE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let fd = self.0.start.load(Ordering::Relaxed) as i32;
            // SAFETY: this object owns the descriptor, and the exchange shows that no other code has closed it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.close();
        // SYNC(noted): pairs with `note`, which fills a free entry.
        self.0.state.store(FREE, Ordering::Release);
    }
}

/// Drops all registered mappings and descriptors, except for pinned mappings and the mappings in `keep`.
///
/// This function must be called in a forked child that has only one thread. Zeros replace the contents of the mappings,
/// so that remaining pointers into the mappings are harmless.
pub fn drop_all_but(keep: &[&Mapping]) {
    let mut dropped = Vec::new();
    for entry in entries() {
        let start = entry.start.load(Ordering::Relaxed);
        // SYNC(noted): pairs with `note`.
        match entry.state.load(Ordering::Acquire) {
            MAPPING | OWN_MAPPING
                if entry.pins.load(Ordering::Relaxed) == 0 && !keep.iter().any(|kept| ptr::eq(kept.0, entry)) =>
            {
                dropped.push(span(entry));
            }
            DESCRIPTOR => {
                entry.state.store(OPAQUE, Ordering::Relaxed);
                // SAFETY: a `Descriptor` owns the descriptor, and its state shows that the descriptor is open.
                drop(unsafe { OwnedFd::from_raw_fd(start as i32) });
            }
            _ => {}
        }
    }
    for (start, end) in joined(dropped) {
        // SAFETY: no lease, block or array points into an unpinned mapping, and the owner of a mapping only reads
        // atomic words, which may be 0. The memory is still mapped, because owners drop their `Mapping` before
        // unmapping the memory.
        unsafe { put_zeros(start, end - start) };
    }
}

fn span(entry: &InheritedEntry) -> (usize, usize) {
    let (start, len) = (entry.start.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed));
    (start, start + len.next_multiple_of(SMALLEST_PAGE))
}

fn joined(mut spans: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    spans.sort_unstable();
    spans.dedup_by(|next, last| {
        let is_adjacent = next.0 == last.1;
        if is_adjacent {
            last.1 = next.1;
        }
        is_adjacent
    });
    spans
}

/// # Safety
/// The range must consist of existing mappings, and no code may need their contents any more.
unsafe fn put_zeros(start: usize, len: usize) {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller guarantees that no code needs the contents of the mappings any more.
    unsafe { libc::mmap(start as *mut libc::c_void, len, access, flags, -1, 0) };
}

/// Zeroes the memory of all mappings that `wipe_on_fork` has marked. The fork hook calls this function before any other
/// code of the child, so the function neither locks nor allocates.
pub fn wipe_what_is_the_parents() {
    // SYNC(noted): pairs with `Mapping::wipe_on_fork`.
    for entry in entries().filter(|entry| entry.state.load(Ordering::Acquire) == OWN_MAPPING) {
        // SAFETY: the marked mappings contain only atomic counters, and zero is a valid counter value. The memory is
        // still mapped, because owners drop their `Mapping` before unmapping the memory.
        unsafe { put_zeros(entry.start.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Link, LinkConfig};

    fn maps(inode: u64) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.split_whitespace().nth(4) == Some(&inode.to_string()))
    }

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn adjacent_mappings_are_merged_into_one_span() {
        assert_eq!(joined(vec![(8, 9), (2, 4), (0, 2), (4, 5), (6, 7)]), [(0, 5), (6, 7), (8, 9)]);
        assert_eq!(joined(vec![]), []);
    }

    #[test]
    fn a_forked_child_drops_everything_except_its_own_and_pinned_mappings() {
        let links: Vec<Link> = (0..3).map(|_| Link::create(LinkConfig::default()).unwrap()).collect();
        let watch = crate::process::liveness::Watch::open(std::process::id() as i32).unwrap();
        let inodes: Vec<u64> = links.iter().map(|link| rustix::fs::fstat(link.region().fd()).unwrap().st_ino).collect();
        links[1].region().mapping.pin();
        // SAFETY: the child only reads /proc, changes its mappings and exits, without taking locks.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let before = descriptors();
            drop_all_but(&[&links[0].region().mapping]);
            let kept: Vec<bool> = inodes.iter().map(|&inode| maps(inode)).collect();
            let right = kept == [true, true, false] && descriptors() < before;
            let right = right && links[2].sent() == (0, 0) && !watch.exited();
            drop((links, watch));
            // SAFETY: `_exit` ends the child without running the exit handlers of the parent.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for writing during the call.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "the child found other mappings than expected");
        links[1].region().mapping.unpin();
        assert!(!watch.exited());
    }
}
