//! Manages anonymous memory that several processes map.
//!
//! On Linux, a region is a memfd, and the portable fallback is an unlinked temporary file. The memory is freed together
//! with the last mapping and descriptor, even if processes are killed.
//!
//! If a file system is full, touching a new page causes SIGBUS, so the portable fallback reserves space in advance. A
//! memfd counts toward the memory of the machine and the cgroup, and the kernel kills a process if there is not enough.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::backend::system;
use super::inherited::Mapping;
use crate::error::{self, OpenError};

/// A mapped region of shared memory.
#[derive(Debug)]
pub struct Region {
    /// Fields are dropped in order, so `mapping` must precede `map`.
    pub(crate) mapping: Mapping,
    map: MmapRaw,
    /// The descriptor, or -1 once it has been closed.
    fd: AtomicI32,
}

impl Region {
    /// Creates a region of `len` zero bytes. The first `reserved` bytes can be used without a call of `reserve`.
    pub fn create(len: usize, reserved: usize) -> Result<Self, OpenError> {
        Self::create_named("torchdata", len, reserved)
    }

    /// Creates a region like `create`, and sets the name that the system shows for the descriptor.
    pub fn create_named(name: &str, len: usize, reserved: usize) -> Result<Self, OpenError> {
        let file = system().memory_file(name, len).map_err(error::system("cannot create shared memory"))?;
        let region = Self::map(file)?;
        region.reserve(0, reserved).map_err(|source| OpenError::NoRoom {
            bytes: reserved,
            folder: std::env::temp_dir(),
            source,
        })?;
        Ok(region)
    }

    /// Ensures that the bytes `offset..offset + len`, which must not contain data yet, can be used.
    pub fn reserve(&self, offset: usize, len: usize) -> io::Result<()> {
        let system = system();
        if system.keeps_files() { system.reserve(self.fd(), offset as u64, len as u64) } else { Ok(()) }
    }

    /// Frees the pages of the bytes `offset..offset + len`, which are zero afterwards.
    pub fn punch(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset + len <= self.len(), "the range exceeds the region");
        #[cfg(target_os = "linux")]
        // SAFETY: the range is inside the mapping, which is shared memory, and callers do not need the freed contents.
        return unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::Remove, offset, len) };
        #[cfg(not(target_os = "linux"))]
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Maps the region of `fd`, a descriptor that was received from the process that created the region.
    pub fn attach(fd: OwnedFd) -> Result<Self, OpenError> {
        Self::map(File::from(fd))
    }

    /// The file must be sealed against shrinking, because reading a removed page causes SIGBUS.
    pub(crate) fn observe(file: &File) -> Result<Self, OpenError> {
        if !system().is_sealed(file.as_fd()) {
            return Err(OpenError::Invalid("it is not sealed against shrinking"));
        }
        let map = MmapOptions::new().map_raw_read_only(file).map_err(error::system("cannot map shared memory"))?;
        let mapping = Mapping::note(map.as_ptr(), map.len());
        Ok(Self { mapping, map, fd: AtomicI32::new(-1) })
    }

    fn map(file: File) -> Result<Self, OpenError> {
        let map =
            MmapOptions::new().no_reserve_swap().map_raw(&file).map_err(error::system("cannot map shared memory"))?;
        let mapping = Mapping::note(map.as_ptr(), map.len());
        Ok(Self { mapping, map, fd: AtomicI32::new(file.into_raw_fd()) })
    }

    /// Returns the descriptor, which can be passed to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        let fd = self.fileno();
        assert!(fd >= 0, "the descriptor of this region was closed after all processes had received it");
        // SAFETY: the descriptor is open until `close`, which is not called while the returned descriptor is in use.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Returns the number of the descriptor, or -1 if it has been closed.
    pub fn fileno(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Closes the descriptor, unless the portable fallback needs it to reserve space. Must not be called while a result
    /// of `fd` is in use.
    pub fn close(&self) {
        if !system().keeps_files() {
            drop(self.take_descriptor());
        }
    }

    /// Must not be called while a result of `fd` is in use, or before the last call of `reserve`.
    pub(crate) fn take_descriptor(&self) -> Option<OwnedFd> {
        let fd = self.fd.swap(-1, Ordering::Relaxed);
        // SAFETY: the region owned the descriptor, which no other caller can take, because `self.fd` is -1.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns the start of the mapping, which is page-aligned.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    pub fn advise_huge(&self, offset: usize, len: usize) {
        system().advise_huge(&self.map, offset, len);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        drop(self.take_descriptor());
    }
}

/// Drops the regions and watches that this process has inherited, except for pinned regions and the regions in `own`
/// (see `inherited`). Must be called in a forked child with a single thread.
pub fn drop_inherited(own: &[&Region]) {
    let own: Vec<&Mapping> = own.iter().map(|region| &region.mapping).collect();
    super::inherited::drop_all_but(&own);
}
