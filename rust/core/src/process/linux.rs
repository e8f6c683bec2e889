//! Implements `System` with memory files, futexes and process descriptors, which exist only on Linux.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use memmap2::MmapRaw;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::futex;

use super::system::System;

pub(super) fn is_whole() -> bool {
    let is_there = |result: rustix::io::Result<OwnedFd>| match result {
        Ok(_) => true,
        Err(error) => !matches!(error, rustix::io::Errno::NOSYS | rustix::io::Errno::PERM | rustix::io::Errno::ACCESS),
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    is_there(memfd_create("torchdata", flags)) && is_there(pidfd_open(rustix::process::getpid(), PidfdFlags::empty()))
}

pub(super) struct Linux;

impl System for Linux {
    /// Creates a memfd, because the size of `/dev/shm` is often limited, especially in containers.
    fn memory_file(&self, name: &str, len: usize) -> io::Result<File> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        // Without these seals on the memfd, another process could shrink the file, and this process would receive
        // SIGBUS when it accesses the removed pages.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(File::from(fd))
    }

    fn is_sealed(&self, file: BorrowedFd<'_>) -> bool {
        fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
    }

    /// Does nothing, because memory of a memfd cannot be reserved.
    fn reserve(&self, _file: BorrowedFd<'_>, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn keeps_files(&self) -> bool {
        false
    }

    fn advise_huge(&self, map: &MmapRaw, offset: usize, len: usize) {
        if len > 0 {
            let _ = map.advise_range(memmap2::Advice::HugePage, offset, len);
        }
    }

    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration) {
        let timeout = futex::Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        // The flag PRIVATE is not set, because several processes wait on `word`.
        let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
    }

    fn unpark(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    fn watch(&self, pid: i32) -> io::Result<Option<OwnedFd>> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Some(pidfd_open(pid, PidfdFlags::empty())?))
    }
}
