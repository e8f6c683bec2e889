//! A watch on the life of a process, and a child's tie to its parent.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::backend::system;
use super::inherited::Descriptor;
use super::signals::without_signals;
use crate::error::{self, OpenError};

/// A watch on another process that cannot mistake a recycled process number for it.
#[derive(Debug)]
pub struct Watch {
    pid: i32,
    /// A pidfd; None on the portable fallback, which asks for the number.
    fd: Option<Descriptor>,
    /// Whether it is the parent of this process, which the fallback then recognises as such.
    parent: bool,
}

impl Watch {
    /// Watches the process `pid`, which must not have been reaped yet.
    pub fn open(pid: i32) -> Result<Self, OpenError> {
        if pid <= 0 {
            // To the system these mean groups of processes.
            return Err(OpenError::watch(std::io::ErrorKind::InvalidInput.into()));
        }
        let fd = system().watch(pid).map_err(OpenError::watch)?.map(Descriptor::note);
        Ok(Self { pid, fd, parent: parent_id() == pid })
    }

    /// Watches whatever makes a descriptor readable when it ends: a process elsewhere, of which others tell.
    pub fn by(fd: OwnedFd) -> Result<Self, OpenError> {
        Ok(Self { pid: 0, fd: Some(Descriptor::note(fd)), parent: false })
    }

    /// Whether the process has ended, reaped or not.
    pub fn exited(&self) -> bool {
        match &self.fd {
            Some(fd) => poll_exit(fd, Duration::ZERO),
            None => self.number_exited(),
        }
    }

    /// Whether the process has ended, told by its number.
    fn number_exited(&self) -> bool {
        // A parent that ended but was not reaped still has its number, but no children.
        if self.parent { parent_id() != self.pid } else { has_exited(self.pid) }
    }

    /// Whether any of these has ended: one system call if they are watched by descriptors.
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

    /// Waits until the process has ended or the timeout has passed; returns whether it has ended.
    pub fn wait(&self, timeout: Duration) -> bool {
        match &self.fd {
            Some(fd) => poll_exit(fd, timeout),
            None => {
                let deadline = std::time::Instant::now() + timeout;
                loop {
                    if self.number_exited() {
                        return true;
                    }
                    if std::time::Instant::now() >= deadline {
                        return false;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }
}

fn parent_id() -> i32 {
    std::os::unix::process::parent_id() as i32
}

fn poll_exit(fd: &Descriptor, timeout: Duration) -> bool {
    // A forked child has dropped its parent's watches.
    let Some(fd) = fd.get() else { return false };
    let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Whether the process is gone or a zombie, without reaping it.
fn has_exited(pid: i32) -> bool {
    // SAFETY: `info` is a plain struct that waitid fills in; WNOWAIT leaves the child to be reaped by its owner.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags) == 0 {
            return info.si_signo != 0;
        }
        // Not our child: ask for the number. A recycled number is taken for the process, hence "fallback".
        if libc::kill(pid, 0) != 0 {
            return std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        }
    }
    is_zombie(pid)
}

/// Whether a process has ended and only waits to be reaped, if the system tells in /proc.
fn is_zombie(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the name, which stands in parentheses and may hold any character.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// Ends this process, at once and silently, when the watched one has ended.
///
/// A thread of its own waits, so that it works whatever this process is doing. (The kernel's parent-death signal is
/// tied to the thread that forked, which may end long before the parent does.)
pub fn exit_with(watch: Watch) -> Result<(), OpenError> {
    let builder = std::thread::Builder::new().name("torchdata-parent".to_owned()).stack_size(64 << 10);
    let wait = move || {
        while !watch.wait(Duration::from_secs(1)) {}
        // SAFETY: ends the process without running handlers, which belong to a parent that is gone.
        unsafe { libc::_exit(1) }
    };
    without_signals(|| builder.spawn(wait))
        .map(drop)
        .map_err(error::system("cannot start the thread that watches the parent"))
}
