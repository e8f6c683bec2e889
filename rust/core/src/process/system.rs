//! The contract between the engine and a system; `backend` chooses who fulfils it.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use memmap2::MmapRaw;

/// A system, as the engine needs it.
pub(super) trait System: Sync {
    /// A file of `len` zero bytes to be mapped by several processes; `name` is its name in `/proc`, if there is one.
    fn memory_file(&self, name: &str, len: usize) -> io::Result<File>;

    /// Whether such a file can never shrink.
    fn is_sealed(&self, file: BorrowedFd<'_>) -> bool;

    /// Makes sure that a part of such a file can be touched; it may be filled with zeros.
    fn reserve(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()>;

    /// Whether `reserve` needs the file as long as it is mapped.
    fn keeps_files(&self) -> bool;

    /// Asks for huge pages in a part of a mapping; never fails.
    fn advise_huge(&self, map: &MmapRaw, offset: usize, len: usize);

    /// Gives pages of a shared mapping back, which are zero afterwards; `Unsupported` off Linux.
    ///
    /// # Safety
    /// The part is a shared mapping of a memory file, and nobody needs its content.
    unsafe fn punch(&self, start: *mut u8, len: usize) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        // SAFETY: as promised by the caller; the part reads as zeros afterwards.
        return match unsafe { libc::madvise(start.cast(), len, libc::MADV_REMOVE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (start, len);
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Sleeps while the word, which other processes change, is `seen`, at most for `timeout`; may return early.
    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration);

    /// Wakes all who sleep on the word.
    fn unpark(&self, word: &AtomicU32);

    /// A descriptor that becomes readable when the process ends; None if there are none.
    fn watch(&self, pid: i32) -> io::Result<Option<OwnedFd>>;
}
