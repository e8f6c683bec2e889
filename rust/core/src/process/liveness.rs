//! Detects that another process exits, and makes a child process exit when its parent exits.

use std::os::fd::OwnedFd;
use std::os::unix::process::parent_id;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::backend::system;
use super::inherited::Descriptor;
use super::signals::without_signals;
use crate::error::{self, OpenError};

#[derive(Debug)]
pub struct Watch {
    pid: i32,
    /// A descriptor of the watched process, or None in the portable fallback.
    fd: Option<Descriptor>,
    parent: bool,
}

impl Watch {
    /// Watches the process `pid`. The caller must ensure that no code has collected the exit status of the process
    /// `pid` yet.
    pub fn open(pid: i32) -> Result<Self, OpenError> {
        if pid <= 0 {
            // For a number that is not positive, `kill` would check a process group instead of a process.
            return Err(OpenError::watch(std::io::ErrorKind::InvalidInput.into()));
        }
        let fd = system().watch(pid).map_err(OpenError::watch)?.map(Descriptor::note);
        Ok(Self { pid, fd, parent: parent_id() as i32 == pid })
    }

    /// Watches a process through `fd`, for example a connection to another machine, which becomes readable when the
    /// process exits.
    pub fn by(fd: OwnedFd) -> Result<Self, OpenError> {
        Ok(Self { pid: 0, fd: Some(Descriptor::note(fd)), parent: false })
    }

    /// Returns true also for a zombie, which has exited but was not waited for.
    pub fn exited(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    fn number_exited(&self) -> bool {
        // Once the parent has exited, this process has a new parent, even if the old parent is still a zombie.
        if self.parent { parent_id() as i32 != self.pid } else { has_exited(self.pid) }
    }

    /// Returns whether any process has exited, with one system call for all processes that have descriptors.
    pub fn any_exited<'a>(watches: impl Iterator<Item = &'a Self>) -> bool {
        let mut fds = Vec::new();
        for watch in watches {
            match &watch.fd {
                Some(fd) => fds.extend(fd.get().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))),
                None if watch.number_exited() => return true,
                None => {}
            }
        }
        !fds.is_empty() && poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Waits up to `timeout`, and returns whether the process has exited.
    pub fn wait(&self, timeout: Duration) -> bool {
        match &self.fd {
            Some(fd) => poll_exit(fd, timeout),
            None => {
                let deadline = std::time::Instant::now() + timeout;
                while !self.number_exited() {
                    if std::time::Instant::now() >= deadline {
                        return false;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                true
            }
        }
    }
}

fn poll_exit(fd: &Descriptor, timeout: Duration) -> bool {
    let Some(fd) = fd.get() else { return false };
    let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

fn has_exited(pid: i32) -> bool {
    // SAFETY: `info` is a plain struct that `waitid` fills in. The flag WNOWAIT leaves the exit status to the code that
    // waits for this child.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags) == 0 {
            return info.si_signo != 0;
        }
        // For a process that is not a child, this check can be wrong, because the id may have been given to a later
        // process.
        if libc::kill(pid, 0) != 0 {
            return std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        }
    }
    is_zombie(pid)
}

fn is_zombie(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // In `/proc/PID/stat`, the state follows the process name, which is in parentheses and may itself contain
    // parentheses.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// Makes this process exit immediately when the watched process exits.
///
/// A separate thread waits for the watched process, so that this process exits even if its main thread is blocked.
pub fn exit_with(watch: Watch) -> Result<(), OpenError> {
    let builder = std::thread::Builder::new().name("torchdata-parent".to_owned()).stack_size(64 << 10);
    let wait = move || {
        while !watch.wait(Duration::from_secs(1)) {}
        // SAFETY: `_exit` ends this process without running exit handlers, which belong to the parent.
        unsafe { libc::_exit(1) }
    };
    without_signals(|| builder.spawn(wait))
        .map(drop)
        .map_err(error::system("cannot start the thread that watches the parent"))
}

/// Makes the kernel resume this process (SIGCONT) when its parent exits, because a suspended process cannot detect the
/// exit.
///
/// The kernel sends SIGCONT even when only the thread that created this process exits. A running process ignores
/// SIGCONT.
pub fn continue_with_parent() {
    #[cfg(target_os = "linux")]
    // SAFETY: `prctl` only sets an attribute of this thread here, and accesses no memory.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT);
    }
}
