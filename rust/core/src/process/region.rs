//! Memory that several processes map: anonymous, without a name to leave behind.
//!
//! Linux backs it with a memfd, which no mount's size limits (unlike `/dev/shm`); the portable fallback is an unlinked
//! temporary file. Pages exist once they are touched, so a large region that is little used costs little, and `punch`
//! gives pages back. Each process owns its mapping of a region; the memory lives until the last mapping and descriptor
//! are gone, whichever way the processes end.
//!
//! A page of a file that finds no room on its file system when it is touched is a SIGBUS, which no process survives. So
//! on the fallback room is reserved before it is touched, and if there is none that is an error like any other. A
//! memfd counts towards the machine's memory and the process's memory cgroup instead; if these run out the kernel
//! ends a process, by SIGKILL.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::backend::system;
use super::inherited::Mapping;
use crate::error::{self, OpenError};

/// A mapped piece of shared memory.
#[derive(Debug)]
pub struct Region {
    /// Before the mapping, so that it is dropped first.
    mapping: Mapping,
    map: MmapRaw,
    /// The descriptor: a memfd needs it only to be passed on, a temporary file to be given room, too. -1 once it was
    /// closed.
    fd: AtomicI32,
}

impl Region {
    /// Makes a region of `len` bytes, all zero, of which the first `reserved` may be touched without asking.
    pub fn create(len: usize, reserved: usize) -> Result<Self, OpenError> {
        Self::create_named("torchdata", len, reserved)
    }

    /// The same under a name, by which a process that may look into this one's descriptors finds it.
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

    /// Makes sure that `offset..offset + len`, which holds nothing of value yet, can be touched. Fails if there is
    /// no room.
    pub fn reserve(&self, offset: usize, len: usize) -> io::Result<()> {
        let system = system();
        if system.keeps_files() { system.reserve(self.fd(), offset as u64, len as u64) } else { Ok(()) }
    }

    /// Gives the pages of `offset..offset + len` back to the system: they are zero, and cost nothing until they are
    /// touched (or, on the fallback, reserved) again. Fails if the file system of the fallback has no holes.
    pub fn punch(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset + len <= self.len(), "a part outside the region");
        // SAFETY: inside the mapping, which is shared memory; that nobody needs what lies there is for callers to know.
        unsafe { system().punch(self.as_mut_ptr().add(offset), len) }
    }

    /// Maps the region behind a descriptor received from its creator.
    pub fn attach(fd: OwnedFd) -> Result<Self, OpenError> {
        Self::map(File::from(fd))
    }

    /// Maps a region of somebody else's to read it; writing there would be a fault. It has no descriptor.
    ///
    /// It must be one that cannot shrink: a page that is gone when it is looked at is a SIGBUS.
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

    /// The descriptor, to be passed to another process.
    ///
    /// # Panics
    /// If it was closed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        let fd = self.fd.load(Ordering::Relaxed);
        assert!(fd >= 0, "the descriptor of this region was closed: it has been passed to all who should have it");
        // SAFETY: open until `close`, whose callers see to it that nobody uses it any more.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Whether there is a descriptor.
    pub fn has_fd(&self) -> bool {
        self.fd.load(Ordering::Relaxed) >= 0
    }

    /// Closes the descriptor, once everybody who should map the region has it; not while `fd` is in use. The portable
    /// fallback keeps it, as it reserves room by it.
    pub fn close(&self) {
        if !system().keeps_files() {
            self.take_fd();
        }
    }

    fn take_fd(&self) {
        drop(self.take_descriptor());
    }

    /// The descriptor, which the caller owns from now on; not while `fd` is in use, nor if room is to be reserved
    /// later.
    pub(crate) fn take_descriptor(&self) -> Option<OwnedFd> {
        let fd = self.fd.swap(-1, Ordering::Relaxed);
        // SAFETY: the region owned it, and the swap makes this the only one to take it.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The note by which forked children know the mapping.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Start of the mapping; page-aligned.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Asks the kernel for huge pages in `offset..offset + len` if it offers them; never fails.
    pub fn advise_huge(&self, offset: usize, len: usize) {
        system().advise_huge(&self.map, offset, len);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.take_fd();
    }
}

/// In a child that was just forked and has no other thread: drops the regions of its parent but those that are its own
/// and those that something points into, and the parent's watches (see `inherited`).
pub fn drop_inherited(own: &[&Region]) {
    let own: Vec<&Mapping> = own.iter().map(|region| region.mapping()).collect();
    super::inherited::drop_all_but(&own);
}
