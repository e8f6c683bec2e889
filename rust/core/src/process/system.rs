//! Defines the interface between the Rust core and the operating system.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use memmap2::MmapRaw;

pub(super) trait System: Sync {
    fn memory_file(&self, name: &str, len: usize) -> io::Result<File>;

    fn is_sealed(&self, file: BorrowedFd<'_>) -> bool;

    /// Ensures that a range of a memory file is usable. The call may overwrite the range with zeros.
    fn reserve(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()>;

    fn keeps_files(&self) -> bool;

    fn advise_huge(&self, map: &MmapRaw, offset: usize, len: usize);

    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration);

    fn unpark(&self, word: &AtomicU32);

    /// Returns a descriptor that becomes readable when the process exits, or None if the system does not support such
    /// descriptors.
    fn watch(&self, pid: i32) -> io::Result<Option<OwnedFd>>;
}
