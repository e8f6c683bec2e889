//! Errors between the two ends of a link.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a shared region, a link or a watch could not be made or attached.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system refused.
    #[error("{what}: {source}{}", way_out(source))]
    System {
        /// The attempt.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The temporary file that stands in for shared memory has no room to grow.
    #[error(
        "no room for {bytes} bytes of shared memory on the file system of {} ({source}): free some space there, let TMPDIR \
         name a folder with more, or unset TORCHDATA_PORTABLE where the system has memfd_create",
        folder.display()
    )]
    NoRoom {
        /// A link or a board of bells cannot begin.
        bytes: usize,
        /// Where temporary files lie.
        folder: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The region never became a link within the time allowed.
    #[error("the shared region was not initialised within {0:?}: its creator died or it is no link")]
    NotReady(Duration),
    /// The other side was built from a release with another layout.
    #[error(
        "the shared region has layout version {found}, this build reads {expected}: one process runs another release"
    )]
    Version {
        /// Version in the region.
        found: u32,
        /// Version of this build.
        expected: u32,
    },
    /// The header contradicts itself or the size of the region.
    #[error("the shared region is no valid link: {0}")]
    Invalid(&'static str),
    /// The end is in use: a link has one producer and one consumer for life.
    #[error("the {0} end of this link is already taken")]
    Taken(&'static str),
}

impl OpenError {
    /// The system does not let a process be watched.
    pub fn watch(source: io::Error) -> Self {
        Self::System { what: "cannot watch a process", source }
    }
}

/// The peer wrote against the rules of the link; nothing more can be read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the shared memory of a link is corrupted: {0}")]
pub struct Corrupted(pub &'static str);

/// Why a unit could not be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// No unit lies there.
    #[error(transparent)]
    Corrupted(#[from] Corrupted),
    /// This process gets no memory for its bytes.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// The system refuses memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for {0} bytes of an item")]
pub struct NoMemory(pub usize);

/// Which limit a system has hit, and how to come by without it; nothing if it is none that people set.
fn way_out(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE) => {
            "; each process of a loader takes descriptors, and the limit of open files is reached: raise it (ulimit -n), or \
             use fewer workers"
        }
        Some(libc::ENFILE) => "; the limit of open files of the whole machine is reached (fs.file-max)",
        Some(libc::ENOMEM) => {
            "; the limit of address space (ulimit -v) or of memory is reached: give the reading service a smaller \
             `memory_budget=`, use fewer workers, or raise the limit"
        }
        Some(libc::EFBIG) => {
            "; the limit of the size of a file (ulimit -f) is reached, which holds for shared memory, too: give the reading \
             service a smaller `memory_budget=`, or raise the limit"
        }
        Some(libc::ENOENT | libc::ENOTDIR) => {
            "; on the portable fallback shared memory is a temporary file: let TMPDIR name a folder that is there"
        }
        _ => "",
    }
}

#[cfg(not(loom))]
pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::System { what, source }
}
