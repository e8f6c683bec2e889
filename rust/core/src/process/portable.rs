//! Implements `System` for any Unix, with unlinked temporary files, short sleeps and process ids.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapRaw;

use super::system::System;

pub(super) struct Portable;

impl System for Portable {
    fn memory_file(&self, _name: &str, len: usize) -> io::Result<File> {
        temporary_file(len)
    }

    /// Returns false, because any process that may write to a temporary file can also shrink the file.
    fn is_sealed(&self, _file: BorrowedFd<'_>) -> bool {
        false
    }

    /// Reserves space in the file system, because a write to a full file system would cause SIGBUS.
    fn reserve(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
        if len > 0 { reserve_file(file, offset, len) } else { Ok(()) }
    }

    fn keeps_files(&self) -> bool {
        true
    }

    fn advise_huge(&self, _map: &MmapRaw, _offset: usize, _len: usize) {}

    fn park(&self, word: &AtomicU32, seen: u32, timeout: Duration) {
        nap(word, seen, timeout);
    }

    fn unpark(&self, _word: &AtomicU32) {}

    fn watch(&self, _pid: i32) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }
}

fn nap(word: &AtomicU32, seen: u32, timeout: Duration) {
    let deadline = Instant::now() + timeout;
    let mut nap = Duration::from_micros(20);
    while word.load(Ordering::Relaxed) == seen && Instant::now() < deadline {
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(1));
    }
}

fn reserve_file(fd: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        match fallocate(fd, FallocateFlags::empty(), offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(rustix::io::Errno::INTR) => return reserve_file(fd, offset, len),
            done => return Ok(done?),
        }
    }
    // If the file system does not support reservations, writing zeros allocates the space.
    use std::os::unix::fs::FileExt;
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let file = File::from(fd.try_clone_to_owned()?);
    let mut written = 0;
    while written < len {
        let piece = (len - written).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..piece as usize], offset + written)?;
        written += piece;
    }
    Ok(())
}

fn temporary_file(len: usize) -> io::Result<File> {
    let folder = std::env::temp_dir();
    let file = nameless_file(&folder).map_or_else(|| named_file(&folder), Ok)?;
    file.set_len(len as u64)?;
    Ok(file)
}

fn nameless_file(folder: &Path) -> Option<File> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Mode, OFlags, open};
        let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        open(folder, flags, Mode::RUSR | Mode::WUSR).map(File::from).ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = folder;
        None
    }
}

fn named_file(folder: &Path) -> io::Result<File> {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    for _ in 0..1024 {
        let serial = NEXT.fetch_add(1, Relaxed);
        let path = folder.join(format!(".torchdata-{}-{serial}", std::process::id()));
        match File::options().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "no free temporary file name"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn temporary_files_are_private_to_their_creator_from_the_start() {
        let folder = std::env::temp_dir();
        for file in [nameless_file(&folder), named_file(&folder).ok()].into_iter().flatten() {
            let found = file.metadata().unwrap();
            assert_eq!((found.mode() & 0o777, found.nlink()), (0o600, 0));
        }
    }
}
