//! Memory that is moved into huge pages keeps its content, and neither grows nor is copied.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard};

use memmap2::{MmapMut, MmapOptions};
use torchdata_core::process::huge_pages::{HUGE, gather};

const PAGE: usize = 4096;
const COUNT: usize = 4;

/// Held by each test: a child that another one forks would share the memory of this one.
static ALONE: Mutex<()> = Mutex::new(());

/// Memory with room for so many huge pages, of which one page in `every` was written.
struct Memory {
    map: MmapMut,
    every: usize,
    _alone: MutexGuard<'static, ()>,
}

impl Memory {
    fn new(every: usize) -> Self {
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut map = MmapOptions::new().len((COUNT + 1) * HUGE).map_anon().unwrap();
        for (number, page) in map.chunks_mut(PAGE).enumerate().step_by(every) {
            page[number % PAGE] = number as u8 | 1;
        }
        Self { map, every, _alone: alone }
    }

    /// How many of its pages are in memory, and how many of these no other process has.
    fn counts(&self) -> (usize, usize) {
        let mut entries = vec![0; self.map.len() / PAGE * 8];
        let at = self.map.as_ptr() as usize / PAGE * 8;
        File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entries, at as u64).unwrap();
        let entries = entries.chunks_exact(8).map(|entry| u64::from_ne_bytes(entry.try_into().unwrap()));
        let present: Vec<u64> = entries.filter(|entry| entry >> 63 & 1 == 1).collect();
        (present.len(), present.iter().filter(|&entry| entry >> 56 & 1 == 1).count())
    }

    fn has_its_content(&self) -> bool {
        let mut written = self.map.chunks(PAGE).enumerate().step_by(self.every);
        written.all(|(number, page)| page[number % PAGE] == number as u8 | 1)
    }

    /// Whether this system moves a piece of it: older ones cannot, and some have no huge page to give.
    fn can_be_moved(&self) -> bool {
        let start = (self.map.as_ptr() as usize).next_multiple_of(HUGE);
        // SAFETY: the content stays. 25 is `MADV_COLLAPSE`.
        unsafe { libc::madvise(start as *mut libc::c_void, HUGE, 25) == 0 }
    }
}

#[test]
fn memory_that_is_in_use_is_moved_and_keeps_its_content() {
    let memory = Memory::new(1);
    let moved = gather();
    assert!(memory.has_its_content());
    assert!(moved >= COUNT * HUGE || !memory.can_be_moved(), "{moved} bytes were moved");
}

#[test]
fn memory_with_holes_does_not_grow() {
    let memory = Memory::new(2);
    let before = memory.counts();
    gather();
    assert_eq!(memory.counts(), before);
    assert!(memory.has_its_content());
}

#[test]
fn memory_that_a_forked_child_has_too_stays_shared() {
    let memory = Memory::new(1);
    // SAFETY: the child needs no lock, and is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: it waits for its end, which comes by itself if its parent was killed.
            unsafe {
                libc::alarm(60);
                libc::pause();
            }
        }
    }
    let before = memory.counts();
    gather();
    let after = memory.counts();
    // SAFETY: it is this process's child, and was not waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!(before, (memory.map.len() / PAGE, 0), "all pages are in memory, and none is its own");
    assert_eq!(after, before);
}
