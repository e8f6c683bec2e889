//! Signals that are not for a process, or not for a thread of this library.

use std::io;

extern "C" fn nothing(_number: libc::c_int) {}

/// Has this process take no notice of a signal, without ignoring it: a program that it executes takes it as any other
/// does.
///
/// The handler runs on the thread's own stack, and holds up all other signals. Python's own runs on the alternate
/// stack, if `faulthandler` has made one. That has room for a few signals, and several that come at once would overflow
/// it.
pub fn take_no_notice(number: i32) -> io::Result<()> {
    // SAFETY: the handler does nothing; the action is filled in as a whole before it is read.
    let failed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(number, &action, std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
