//! Signals that are not for a process, or not for a thread of this library.

use std::io;

/// Has this process take no notice of a signal that another process sends, without ignoring the signal: a program that
/// this process executes takes the signal as any other program does.
///
/// A signal that this process sends to itself has its default action, because whoever raises SIGTERM in its own process
/// wants to end that process, and would otherwise continue with data that was never computed.
///
/// The handler runs on the thread's own stack, and holds up all other signals. Python's own runs on the alternate
/// stack, if `faulthandler` has made one. That has room for a few signals, and several that come at once would overflow
/// it.
pub fn take_no_notice(number: i32) -> io::Result<()> {
    act(number, obey_own as extern "C" fn(_, _, _) as libc::sighandler_t, libc::SA_RESTART | libc::SA_SIGINFO)
}

fn act(number: i32, handler: libc::sighandler_t, flags: i32) -> io::Result<()> {
    // SAFETY: the action is filled in as a whole before it is read; the callers give a handler that fits the flags.
    let failed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(number, &action, std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives a signal that this process has sent to itself its default action; does nothing with any other.
extern "C" fn obey_own(number: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel calls this with a valid description of the signal.
    if !is_from_this_process(unsafe { &*info }) || act(number, libc::SIG_DFL, 0).is_err() {
        return;
    }
    // SAFETY: all calls are allowed in a signal handler, and the set is filled in before it is read.
    unsafe {
        let mut this = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(this.as_mut_ptr());
        libc::sigaddset(this.as_mut_ptr(), number);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, this.as_ptr(), std::ptr::null_mut());
        libc::raise(number);
    }
}

/// Whether this process has sent a signal: a timer, the kernel and other processes may be what else does.
fn is_from_this_process(info: &libc::siginfo_t) -> bool {
    #[cfg(target_os = "linux")]
    if !matches!(info.si_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL) {
        return false; // the description of such a signal has no sender
    }
    // SAFETY: a signal that a process has sent has a sender, and reading its number is defined for any other, too.
    unsafe { info.si_pid() == libc::getpid() }
}

/// Starts a thread to which no signal of the process is delivered, at any moment.
///
/// Python's main thread notices a signal at once if it interrupts that thread, and a signal that another thread
/// receives only when something else makes it look. And Python's handlers run on a thread's alternate stack, which Rust
/// makes as small as can be: several signals that come at once would overflow it.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are filled in before they are read, and the mask of this thread comes back as it was.
    unsafe {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        let is_masked = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0;
        let started = start();
        if is_masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
        started
    }
}
