//! Controls the signals that this process reacts to, and blocks all signals in threads that this library starts.

use std::io;

/// Makes this process ignore the signal `number`, unless the process itself has sent the signal.
///
/// A signal handler is installed instead of SIG_IGN, because programs that this process executes would inherit SIG_IGN.
/// The handler runs on the normal stack, because the alternate stack of `faulthandler` may be too small.
pub fn ignore_signal(number: i32) -> io::Result<()> {
    act(number, act_on_own as extern "C" fn(_, _, _) as libc::sighandler_t, libc::SA_RESTART | libc::SA_SIGINFO)
}

fn act(number: i32, handler: libc::sighandler_t, flags: i32) -> io::Result<()> {
    // SAFETY: `action` is completely initialized, and callers pass a handler with the signature that `flags` requires.
    let failed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(number, &action, std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn act_on_own(number: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a pointer to a valid description of the signal.
    if !is_from_this_process(unsafe { &*info }) || act(number, libc::SIG_DFL, 0).is_err() {
        return;
    }
    // SAFETY: the C functions that are called here are allowed in signal handlers, and the signal set is initialized
    // before it is read.
    unsafe {
        let mut this = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(this.as_mut_ptr());
        libc::sigaddset(this.as_mut_ptr(), number);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, this.as_ptr(), std::ptr::null_mut());
        libc::raise(number);
    }
}

fn is_from_this_process(info: &libc::siginfo_t) -> bool {
    #[cfg(target_os = "linux")]
    if !matches!(info.si_code, libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL) {
        return false; // the kernel sent the signal, not a process
    }
    // SAFETY: the field is readable for every signal, and contains the sender's id if a process has sent the
    // signal.
    unsafe { info.si_pid() == libc::getpid() }
}

/// Calls `start` while all signals are blocked, so that a new thread receives no signals.
///
/// Signals must reach the main thread, because only there Python reacts to signals immediately.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: `all` and `before` are initialized before they are read. The thread's previous signal mask is restored.
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
