//! Defines the errors of shared memory and of the links between processes.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{what}: {source}{}", way_out(source))]
    System { what: &'static str, source: io::Error },
    #[error(
        "no space for {bytes} bytes of shared memory on the file system of {} ({source}): free some space, set TMPDIR \
         to a folder with more space, or unset TORCHDATA_PORTABLE if the system has memfd_create",
        folder.display()
    )]
    NoRoom { bytes: usize, folder: PathBuf, source: io::Error },
    #[error(
        "the shared region has layout version {found}, but this build reads {expected}: a process runs another release"
    )]
    Version { found: u32, expected: u32 },
    #[error("the shared region is not a valid link: {0}")]
    Invalid(&'static str),
    #[error("the {0} end of this link is already taken")]
    Taken(&'static str),
}

impl OpenError {
    pub fn watch(source: io::Error) -> Self {
        Self::System { what: "cannot watch a process", source }
    }
}

/// The process at the opposite end of a link wrote invalid data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the shared memory of a link is corrupted: {0}")]
pub struct Corrupted(pub &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    #[error(transparent)]
    Corrupted(#[from] Corrupted),
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for {0} bytes of an item")]
pub struct NoMemory(pub usize);

fn way_out(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE) => {
            "; the limit of open files is reached, because each process of a loader needs descriptors: raise the limit \
             (ulimit -n), or use fewer workers"
        }
        Some(libc::ENFILE) => "; the limit of open files of the whole machine is reached (fs.file-max)",
        Some(libc::ENOMEM) => {
            "; the limit of address space (ulimit -v) or of memory is reached: use fewer workers, raise the limit, or \
             give the reading service of a DataLoader2 a smaller `memory_budget=`"
        }
        Some(libc::EFBIG) => {
            "; the limit of the size of a file (ulimit -f) is reached, which also applies to shared memory: raise the limit, or \
             give the reading service of a DataLoader2 a smaller `memory_budget=`"
        }
        Some(libc::ENOENT | libc::ENOTDIR) => {
            "; the portable fallback needs a temporary file for shared memory: set TMPDIR to an existing folder"
        }
        _ => "",
    }
}

#[cfg(not(loom))]
pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::System { what, source }
}
