//! The interface between the engine and the operating system.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use memmap2::MmapRaw;

pub(super) trait System: Sync {
    /// Creates a file of `len` zero bytes that several processes can map.
    fn memory_file(&self, name: &str, len: usize) -> io::Result<File>;

    fn is_sealed(&self, file: BorrowedFd<'_>) -> bool;

    /// Ensures that a part of a memory file can be used, and may overwrite it with zeros.
    fn reserve(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()>;

    /// Returns whether the file must stay open while it is mapped, because `reserve` needs the open file.
    fn keeps_files(&self) -> bool;

    fn advise_huge(&self, map: &MmapRaw, offset: usize, len: usize);

    /// Frees pages of a shared mapping, which are zero afterwards, or returns `Unsupported`.
    ///
    /// # Safety
    /// The range is a shared mapping of a memory file, and its contents are not needed.
    unsafe fn punch(&self, start: *mut u8, len: usize) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        // SAFETY: guaranteed by the caller.
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

    /// Implements `Parker::park` for a word that other processes may change.
    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration);

    fn unpark(&self, word: &AtomicU32);

    /// Returns a descriptor that becomes readable when the process exits, or None without support for such descriptors.
    fn watch(&self, pid: i32) -> io::Result<Option<OwnedFd>>;
}
