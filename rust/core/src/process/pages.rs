//! Replaces pages of this process's memory by pages of a memory file that has the same contents.

use std::io;
use std::os::fd::BorrowedFd;

/// Makes `start..start + len` a private mapping of `file` at `offset`, if this part of the file has the same contents.
/// Returns whether the pages were replaced. On systems other than Linux, nothing is replaced.
///
/// # Safety
/// The range consists of whole pages of private, readable and writable memory. No other thread may write to the range
/// during the call, because its write would be lost. Nothing relies on the range being zero after it was discarded
/// (`MADV_DONTNEED`): the range would then show the contents of the file. The file is sealed.
pub unsafe fn replace_if_equal(file: BorrowedFd<'_>, offset: u64, start: *mut u8, len: usize) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mremap_fixed, munmap};

        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // The file is mapped elsewhere first, because a failure of `mremap` leaves the old pages in place, whereas a
        // failure of `mmap` with MAP_FIXED may not.
        // SAFETY: the kernel chooses an unused range.
        let new = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE, file, offset)? };
        // SAFETY: both ranges are readable. A sealed file does not shrink.
        let is_equal = unsafe { libc::memcmp(new, start.cast(), len) } == 0;
        let moved = if is_equal {
            // SAFETY: the contents of the target range stay the same. The rest is guaranteed by the caller.
            unsafe { mremap_fixed(new, len, len, MremapFlags::MAYMOVE, start.cast()) }.map(|_| true)
        } else {
            Ok(false)
        };
        if !matches!(moved, Ok(true)) {
            // SAFETY: only this function knows the range.
            unsafe { munmap(new, len)? };
        }
        Ok(moved?)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (file, offset, start, len);
        Ok(false)
    }
}

/// Returns whether all other threads of this process sleep.
pub fn others_sleep() -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    {
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        for thread in std::fs::read_dir("/proc/self/task")? {
            let thread = thread?;
            if thread.file_name().as_encoded_bytes() == own.as_bytes() {
                continue;
            }
            match std::fs::read(thread.path().join("stat")) {
                Ok(stat) => {
                    // The name of the thread, in parentheses, may contain any characters.
                    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|end| stat.get(end + 2));
                    if state.is_none_or(|state| !b"STt".contains(state)) {
                        return Ok(false);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // the thread has ended
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
    #[cfg(not(target_os = "linux"))]
    Ok(false)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    const LEN: usize = 1 << 16;

    fn file_of(contents: &[u8]) -> std::fs::File {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(fd);
        file.write_all(contents).unwrap();
        file
    }

    #[test]
    fn equal_pages_are_replaced_and_later_writes_do_not_reach_the_file() {
        let mut memory = memmap2::MmapMut::map_anon(LEN).unwrap();
        memory.fill(7);
        let file = file_of(&[7; LEN]);
        // SAFETY: the range is this test's own anonymous mapping.
        assert!(unsafe { replace_if_equal(file.as_fd(), 0, memory.as_mut_ptr(), LEN) }.unwrap());
        let mut byte = [0];
        std::os::unix::fs::FileExt::write_at(&file, &[9], 5).unwrap();
        assert_eq!(memory[5], 9); // the pages belong to the file
        memory[6] = 1;
        std::os::unix::fs::FileExt::read_at(&file, &mut byte, 6).unwrap();
        assert_eq!((byte[0], memory[6], memory[LEN - 1]), (7, 1, 7));
    }

    #[test]
    fn a_thread_that_computes_does_not_sleep() {
        static ENDS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        let computing = std::thread::spawn(|| while !ENDS.load(std::sync::atomic::Ordering::Relaxed) {});
        while others_sleep().unwrap() {} // the thread is starting
        ENDS.store(true, std::sync::atomic::Ordering::Relaxed);
        computing.join().unwrap();
    }

    #[test]
    fn pages_that_differ_from_the_file_stay() {
        let mut memory = memmap2::MmapMut::map_anon(LEN).unwrap();
        memory[LEN - 1] = 1;
        let file = file_of(&[0; LEN]);
        // SAFETY: the range is this test's own anonymous mapping.
        assert!(!unsafe { replace_if_equal(file.as_fd(), 0, memory.as_mut_ptr(), LEN) }.unwrap());
        assert_eq!(memory[LEN - 1], 1);
    }
}
