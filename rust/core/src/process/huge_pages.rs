//! Moves this process's own memory into huge pages, before it is forked many times.
//!
//! A fork copies an entry for each page, and the child drops it as it ends. A huge page of 2 MiB has one, not 512.
//! Measured with PyTorch imported, 150 MB: a fork takes 1.3 ms, not 3.5, and the life of a worker 15 ms of processor
//! time, not 29. A page that is written in a child is copied alone, as ever.

/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;

/// Moves memory that is in use, and returns how many bytes lie in huge pages then of those that were looked at.
///
/// Memory of which much is untouched stays as it is, since a huge page has no holes. So does memory that a process
/// shares, like that which forked it: moving it would copy it. Nothing is done where the system has no such call (Linux
/// has it since 6.1) or no huge page to give.
pub fn gather() -> usize {
    #[cfg(target_os = "linux")]
    return linux::gather().unwrap_or(0);
    #[cfg(not(target_os = "linux"))]
    0
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{File, read_to_string};
    use std::io;
    use std::ops::Range;
    use std::os::unix::fs::FileExt;

    use super::HUGE;

    /// `MADV_COLLAPSE` in madvise(2); the C library of some systems has no name for it.
    const COLLAPSE: libc::c_int = 25;
    /// Bytes of a page, and pages in a huge one. Where pages are larger, huge ones are much larger.
    const PAGE: usize = 4096;
    const PAGES: usize = HUGE / PAGE;
    /// How many of these are to be in use at least, so that moving them adds little.
    const FILLED: usize = PAGES / 8 * 7;
    /// Bits of an entry in `/proc/self/pagemap`: no other process has the page; it is in memory.
    const EXCLUSIVE: u64 = 1 << 56;
    const PRESENT: u64 = 1 << 63;

    pub fn gather() -> io::Result<usize> {
        // SAFETY: a question to the C library.
        if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } != PAGE as libc::c_long {
            return Ok(0);
        }
        let pages = File::open("/proc/self/pagemap")?;
        let mut moved = 0;
        for memory in read_to_string("/proc/self/maps")?.lines().filter_map(private_memory) {
            let first = memory.start.next_multiple_of(HUGE);
            for start in (first..memory.end.saturating_sub(HUGE - 1)).step_by(HUGE) {
                if !is_filled(&pages, start)? {
                    continue;
                }
                // SAFETY: the content stays, at the same addresses. Memory that is unmapped meanwhile is an error.
                match unsafe { libc::madvise(start as *mut libc::c_void, HUGE, COLLAPSE) } {
                    0 => moved += HUGE,
                    _ if io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) => return Ok(moved),
                    _ => {} // another process writes there, or this memory is not to be moved
                }
            }
        }
        Ok(moved)
    }

    /// The bounds in a line of `/proc/self/maps`, if that is of memory without a file, which nobody else sees.
    fn private_memory(line: &str) -> Option<Range<usize>> {
        let mut words = line.split_whitespace();
        let (bounds, rights, inode) = (words.next()?, words.next()?, words.nth(2)?);
        if rights != "rw-p" || inode != "0" || !matches!(words.next(), None | Some("[heap]")) {
            return None;
        }
        let (start, end) = bounds.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    }

    /// Whether most pages of a huge one are in memory, and none of them is another process's, too.
    fn is_filled(pages: &File, start: usize) -> io::Result<bool> {
        let mut entries = [0; 8 * PAGES];
        pages.read_exact_at(&mut entries, (start / PAGE * 8) as u64)?;
        let (mut present, mut shared) = (0, 0);
        for entry in entries.chunks_exact(8) {
            let entry = u64::from_ne_bytes(entry.try_into().expect("a chunk has 8 bytes"));
            present += usize::from(entry & PRESENT != 0);
            shared += usize::from(entry & PRESENT != 0 && entry & EXCLUSIVE == 0);
        }
        Ok(shared == 0 && present >= FILLED)
    }
}
