//! Which system this is, and what is asked of it.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use memmap2::MmapRaw;

#[cfg(target_os = "linux")]
use super::linux::Linux;
use super::portable::Portable;

/// What the engine needs of a system.
pub(super) trait System: Sync {
    /// A file of `len` zero bytes to be mapped by several processes; `name` is what `/proc` calls it, where there is one.
    fn memory_file(&self, name: &str, len: usize) -> io::Result<File>;

    /// Whether such a file can never shrink.
    fn is_sealed(&self, file: BorrowedFd<'_>) -> bool;

    /// Makes sure that a part of such a file can be touched; it may be filled with zeros.
    fn reserve(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()>;

    /// Whether `reserve` needs the file as long as it is mapped.
    fn keeps_files(&self) -> bool;

    /// Asks for huge pages in a part of a mapping; never fails.
    fn advise_huge(&self, map: &MmapRaw, offset: usize, len: usize);

    /// Gives pages of a shared mapping back, which are zero afterwards.
    ///
    /// # Safety
    /// The part is a mapping of a memory file, and nobody needs what lies there.
    unsafe fn punch(&self, start: *mut u8, len: usize) -> io::Result<()>;

    /// Sleeps while the word, which other processes change, is `seen`, at most for `timeout`; may return early.
    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration);

    /// Wakes all who sleep on the word.
    fn unpark(&self, word: &AtomicU32);

    /// A descriptor that becomes readable when the process ends; None where there are none.
    fn watch(&self, pid: i32) -> io::Result<Option<OwnedFd>>;
}

/// Which implementation serves this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Choice {
    /// What only Linux has.
    Linux = 1,
    /// The fallback, as `TORCHDATA_PORTABLE=1` in the environment asks, and off Linux.
    Portable = 2,
    /// The fallback, because this Linux lacks something: it is old, or a filter of system calls forbids it.
    Lacking = 3,
}

/// Which implementation serves this process. Children ask for themselves, and find the same.
pub fn choice() -> Choice {
    /// 0 until somebody has asked. Without a lock, which a fork might copy while it is held: all who ask find the same.
    static CHOICE: AtomicU8 = AtomicU8::new(0);
    match CHOICE.load(Relaxed) {
        1 => Choice::Linux,
        2 => Choice::Portable,
        3 => Choice::Lacking,
        _ => {
            let found = choose();
            CHOICE.store(found as u8, Relaxed);
            found
        }
    }
}

fn choose() -> Choice {
    if std::env::var_os("TORCHDATA_PORTABLE").is_some_and(|value| value == "1") || !cfg!(target_os = "linux") {
        return Choice::Portable;
    }
    #[cfg(target_os = "linux")]
    if !super::linux::is_whole() {
        return Choice::Lacking;
    }
    Choice::Linux
}

/// Whether the portable fallbacks are to be used.
pub fn portable() -> bool {
    choice() != Choice::Linux
}

/// The system as it is to be used.
pub(super) fn system() -> &'static dyn System {
    #[cfg(target_os = "linux")]
    if !portable() {
        return &Linux;
    }
    &Portable
}
