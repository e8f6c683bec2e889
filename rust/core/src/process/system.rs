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

/// Whether the portable fallbacks are to be used, as `TORCHDATA_PORTABLE=1` in the environment asks.
///
/// Off Linux they always are.
pub fn portable() -> bool {
    /// 0 until somebody has asked. Without a lock, which a fork might copy while it is held: all who ask find the same.
    static PORTABLE: AtomicU8 = AtomicU8::new(0);
    match PORTABLE.load(Relaxed) {
        0 => {
            let asked = std::env::var_os("TORCHDATA_PORTABLE").is_some_and(|value| value == "1");
            let portable = asked || !cfg!(target_os = "linux");
            PORTABLE.store(if portable { 2 } else { 1 }, Relaxed);
            portable
        }
        known => known == 2,
    }
}

/// The system as it is to be used.
pub(super) fn system() -> &'static dyn System {
    #[cfg(target_os = "linux")]
    if !portable() {
        return &Linux;
    }
    &Portable
}
