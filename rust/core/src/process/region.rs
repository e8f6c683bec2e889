//! Manages anonymous memory that several processes map. On Linux, the shared memory is a memfd, and in the portable
//! fallback, the shared memory is an unlinked temporary file.
//!
//! The system frees the memory when the last process closes and unmaps it, even if that process is killed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::backend::system;
use super::inherited::Mapping;
use crate::error::{self, OpenError};

#[derive(Debug)]
pub struct Region {
    /// `mapping` registers the memory in the list of mappings that forked children inherit. `mapping` precedes `map`,
    /// because Rust drops fields in the order of their declaration, and the registration must end before the memory is
    /// unmapped.
    pub mapping: Mapping,
    map: MmapRaw,
    fd: AtomicI32,
}

impl Region {
    /// Creates a region of `len` zero bytes. Only the first `reserved` bytes are usable immediately. All other bytes
    /// become usable by a call of `reserve`.
    pub fn create(name: &str, len: usize, reserved: usize) -> Result<Self, OpenError> {
        let file = system().memory_file(name, len).map_err(error::system("cannot create shared memory"))?;
        let region = Self::map(file)?;
        region.reserve(0, reserved).map_err(|source| OpenError::NoRoom {
            bytes: reserved,
            folder: std::env::temp_dir(),
            source,
        })?;
        Ok(region)
    }

    /// Ensures that the bytes `offset..offset + len` are usable. The range must not contain data yet, because this
    /// method may overwrite the range with zeros.
    pub fn reserve(&self, offset: usize, len: usize) -> io::Result<()> {
        let system = system();
        if system.keeps_files() { system.reserve(self.fd(), offset as u64, len as u64) } else { Ok(()) }
    }

    pub fn punch(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset + len <= self.len(), "the range exceeds the region");
        #[cfg(target_os = "linux")]
        // SAFETY: the range is inside the mapping, which is shared memory, and callers no longer need its contents.
        return unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::Remove, offset, len) };
        #[cfg(not(target_os = "linux"))]
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Maps the region of a descriptor that another process has sent.
    pub fn attach(fd: OwnedFd) -> Result<Self, OpenError> {
        Self::map(File::from(fd))
    }

    /// Maps the region of another program for reading. The file must be sealed against shrinking, because otherwise
    /// another process could remove pages, and reading them would cause SIGBUS.
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

    pub fn fd(&self) -> BorrowedFd<'_> {
        let fd = self.fileno();
        assert!(fd >= 0, "the descriptor of this region was closed after all processes had received it");
        // SAFETY: the descriptor is open until `close`, and callers of `close` no longer use the returned descriptor.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    pub fn fileno(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Closes the descriptor, except in the portable fallback, which needs the descriptor to reserve space. After a
    /// call of `close`, no code may use a descriptor that `fd` has returned.
    pub fn close(&self) {
        if !system().keeps_files() {
            drop(self.take_descriptor());
        }
    }

    /// Takes the descriptor. After this call, no code may use a descriptor that `fd` has returned, or call `reserve`.
    pub(crate) fn take_descriptor(&self) -> Option<OwnedFd> {
        let fd = self.fd.swap(-1, Ordering::Relaxed);
        // SAFETY: the region owned the descriptor, and after the `swap`, no other call can take the same descriptor.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

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
