//! Starts child processes for tests. A child process runs this test binary with only the test `child_process`.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use torchdata_core::link::Link;
use torchdata_core::process::board::BellBoard;
use torchdata_core::process::portable;

const ROLE: &str = "TORCHDATA_TEST_ROLE";
const FIRST_FD: i32 = 100;

/// A child process that is killed and reaped when this value is dropped.
pub struct Process(pub Child);

impl Process {
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn start(role: &str, link: &Link, bells: &Arc<BellBoard>) -> Process {
    start_with(role, &[link.region().fd(), bells.region.fd()])
}

pub fn start_with(role: &str, fds: &[BorrowedFd<'_>]) -> Process {
    let fds: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_process", "--ignored", "--nocapture"]).env(ROLE, role).stdout(Stdio::null());
    // SAFETY: a process may call `dup2` between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for (&from, to) in fds.iter().zip(FIRST_FD..) {
                if libc::dup2(from, to) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Process(command.spawn().unwrap())
}

pub fn is_child() -> bool {
    std::env::var_os(ROLE).is_some()
}

pub fn role() -> String {
    std::env::var(ROLE).expect("other tests run this test, with a role")
}

/// Returns a file descriptor that this process has inherited from its parent. Each `index` may be passed only once.
pub fn inherited_fd(index: i32) -> OwnedFd {
    // SAFETY: the parent has passed the descriptor, and the caller requests each descriptor only once.
    unsafe { OwnedFd::from_raw_fd(FIRST_FD + index) }
}

pub fn inherited() -> (Link, Arc<BellBoard>) {
    (Link::attach(inherited_fd(0)).unwrap(), BellBoard::attach(inherited_fd(1)).unwrap())
}

/// Runs this test binary again, with the portable fallback for shared memory. Fails if the second run skips `caller`.
pub fn run_again_portably(caller: &str) {
    if portable() {
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap()).env("TORCHDATA_PORTABLE", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(&format!("{caller} ... ok")), "the child ran no test: {text}");
}
