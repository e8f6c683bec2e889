//! The mappings and descriptors of links and watches that a forked child inherits and has no use for.
//!
//! A worker started by `fork` gets everything that main has: the links of all its siblings, and of every other loader
//! of the program. As long as it keeps them mapped, their memory lives on, although all others are done with it. So
//! everything of the kind is noted here, and a child drops what it does not keep, before it starts threads.
//!
//! The list is without locks: a fork may come while another thread is noting something, and the child would find the
//! lock taken for ever. The child does not see one that is being noted at that moment, and keeps it.

use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// Bytes of a memory page on machines whose pages are smallest.
const SMALLEST_PAGE: usize = 4096;

/// The entry is free.
const FREE: u32 = 0;
/// Somebody fills it in, or it holds what a parent process has and this one has dropped.
const OPAQUE: u32 = 1;
/// `start` and `len` are a mapping.
const MAPPING: u32 = 2;
/// `start` is a descriptor.
const DESCRIPTOR: u32 = 3;
/// `start` and `len` are a mapping that no forked child is to write to, even one that is none of ours.
const OWN_MAPPING: u32 = 4;

/// One thing that was noted; entries are used again, and never freed.
#[derive(Debug)]
struct Entry {
    next: *const Entry,
    state: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
    /// Pointers of this process into the mapping.
    pins: AtomicUsize,
}

// SAFETY: `next` is written before the entry is published and leads to entries that live for ever; all else is atomic.
unsafe impl Sync for Entry {}
// SAFETY: as above.
unsafe impl Send for Entry {}

static FIRST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SYNC(entries): pairs with `note`; a thread that sees an entry sees its `next`.
    let mut next: *const Entry = FIRST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or an entry, which lives for ever.
        let entry = unsafe { next.as_ref() }?;
        next = entry.next;
        Some(entry)
    })
}

fn note(state: u32, start: usize, len: usize) -> &'static Entry {
    // SYNC(noted): pairs with the drops, which free an entry.
    let taken = entries()
        .find(|entry| entry.state.compare_exchange(FREE, OPAQUE, Ordering::Acquire, Ordering::Relaxed).is_ok());
    let entry = taken.unwrap_or_else(|| {
        let entry: *mut Entry = Box::leak(Box::new(Entry {
            next: FIRST.load(Ordering::Relaxed), // the exchange below sees to the order
            state: AtomicU32::new(OPAQUE),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            pins: AtomicUsize::new(0),
        }));
        loop {
            // SAFETY: not published yet, so this is the only reference.
            let next = unsafe { (*entry).next }.cast_mut();
            // SYNC(entries): pairs with `entries`.
            match FIRST.compare_exchange(next, entry, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: lives for ever, and is only shared from now on.
                Ok(_) => return unsafe { &*entry },
                // SAFETY: as before.
                Err(now) => unsafe { (*entry).next = now },
            }
        }
    });
    entry.start.store(start, Ordering::Relaxed);
    entry.len.store(len, Ordering::Relaxed);
    entry.pins.store(0, Ordering::Relaxed);
    // SYNC(noted): pairs with `drop_all_but`, which a fork separates from this anyway.
    entry.state.store(state, Ordering::Release);
    entry
}

/// The note of a mapping. It is to be dropped before the mapping is unmapped.
#[derive(Debug)]
pub struct Mapping(&'static Entry);

impl Mapping {
    /// Notes the mapping of `len` bytes at `start`.
    pub fn note(start: *const u8, len: usize) -> Self {
        Self(note(MAPPING, start as usize, len))
    }

    /// Keeps the mapping as it is in children that are forked from now on, until `unpin`: something points into it.
    #[inline]
    pub fn pin(&self) {
        self.0.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the mapping private memory of zeros in every child that is forked from now on, before anything runs there.
    pub fn wipe_on_fork(&self) {
        // SYNC(noted): pairs with `wipe_what_is_the_parents`.
        self.0.state.store(OWN_MAPPING, Ordering::Release);
    }

    /// Takes one `pin` back.
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

/// A descriptor that children of ours close.
#[derive(Debug)]
pub struct Descriptor(&'static Entry);

impl Descriptor {
    /// Takes a descriptor over.
    pub fn note(fd: OwnedFd) -> Self {
        Self(note(DESCRIPTOR, fd.into_raw_fd() as usize, 0))
    }

    /// The descriptor; None in a child that has dropped it.
    pub fn get(&self) -> Option<BorrowedFd<'_>> {
        let open = self.0.state.load(Ordering::Relaxed) == DESCRIPTOR;
        // SAFETY: open as long as this lives and the state says so; a child changes that before it has threads.
        open.then(|| unsafe { BorrowedFd::borrow_raw(self.0.start.load(Ordering::Relaxed) as i32) })
    }
}

impl Descriptor {
    /// Closes it; `get` gives None from then on. Not while what `get` gave is in use.
    pub fn close(&self) {
        // Noted as gone first: a child that is forked in between must not close what the number means by then.
        if self.0.state.compare_exchange(DESCRIPTOR, OPAQUE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let fd = self.0.start.load(Ordering::Relaxed) as i32;
            // SAFETY: this owned the descriptor, and by the state nobody in this process has closed it.
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

/// In a child that was just forked and has no other thread: drops what was noted before, except the mappings in `keep`
/// and those that something points into.
///
/// In the place of a mapping there is private memory of zeros then, so that what is left of its objects stays harmless.
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
                // SAFETY: `Descriptor` owns it and sees by the state that it is gone.
                drop(unsafe { OwnedFd::from_raw_fd(start as i32) });
            }
            _ => {}
        }
    }
    for (start, end) in joined(dropped) {
        // SAFETY: no lease, block or array points into these, and the words that their other owners may look at are
        // atomic and valid as zeros. Each owner is alive, as in `wipe`.
        unsafe { put_zeros(start, end - start) };
    }
}

/// The addresses of a mapping, with the rest of its last page where pages are as small as they come.
fn span(entry: &Entry) -> (usize, usize) {
    let (start, len) = (entry.start.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed));
    (start, start + len.next_multiple_of(SMALLEST_PAGE))
}

/// The same addresses in fewer spans: the system lays the links of many workers side by side, and one call serves all.
fn joined(mut spans: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    spans.sort_unstable();
    spans.dedup_by(|next, last| {
        let is_beside = next.0 == last.1;
        if is_beside {
            last.1 = next.1;
        }
        is_beside
    });
    spans
}

/// Puts private memory of zeros in the place of a mapping.
///
/// # Safety
/// The entry is a mapping of this process, and its readers take zeros for what they are.
unsafe fn wipe(entry: &Entry) {
    // SAFETY: the owner is alive, as it takes the note back before it unmaps, so that nothing else lies there.
    unsafe { put_zeros(entry.start.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed)) };
}

/// # Safety
/// Mappings lie there, and nobody minds that they are gone.
unsafe fn put_zeros(start: usize, len: usize) {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: as the caller says.
    unsafe { libc::mmap(start as *mut libc::c_void, len, access, flags, -1, 0) };
}

/// In a child that was just forked, before anything else runs there: what only its parent may write becomes private.
///
/// Takes no lock and allocates nothing.
pub fn wipe_what_is_the_parents() {
    // SYNC(noted): pairs with `Mapping::wipe_on_fork`.
    for entry in entries().filter(|entry| entry.state.load(Ordering::Acquire) == OWN_MAPPING) {
        // SAFETY: all that looks at such a mapping are counters, atomic and valid as zeros.
        unsafe { wipe(entry) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Link;
    use crate::link::LinkConfig;

    /// Whether this process maps any of the link.
    fn maps(inode: u64) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.split_whitespace().nth(4) == Some(&inode.to_string()))
    }

    fn descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn mappings_side_by_side_are_one_span() {
        assert_eq!(joined(vec![(8, 9), (2, 4), (0, 2), (4, 5), (6, 7)]), [(0, 5), (6, 7), (8, 9)]);
        assert_eq!(joined(vec![]), []);
    }

    #[test]
    fn a_forked_child_drops_all_but_its_own_and_what_is_in_use() {
        let links: Vec<Link> = (0..3).map(|_| Link::create(LinkConfig::default()).unwrap()).collect();
        let watch = crate::process::liveness::Watch::open(std::process::id() as i32).unwrap();
        let inodes: Vec<u64> = links.iter().map(|link| rustix::fs::fstat(link.fd()).unwrap().st_ino).collect();
        links[1].region().mapping().pin();
        // SAFETY: the child looks at /proc, changes its mappings and exits; it needs no lock that another thread has.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let before = descriptors();
            drop_all_but(&[links[0].region().mapping()]);
            let kept: Vec<bool> = inodes.iter().map(|&inode| maps(inode)).collect();
            let right = kept == [true, true, false] && descriptors() < before;
            let right = right && links[2].sent() == (0, 0) && !watch.exited();
            drop((links, watch));
            // SAFETY: ends the child without running what belongs to its parent.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "the child found something else than it expected");
        links[1].region().mapping().unpin();
        assert!(!watch.exited());
    }
}
