//! Forking at a moment when a lock is free that only a call of Python's can take: that of PyTorch's global generator.
//!
//! The C library's hook comes behind all hooks of Python's, some of which let the GIL go. Nothing does between this one
//! and the fork. So a thread that has drawn and wants to draw again waits for the GIL meanwhile, and one that waits for
//! the lock without the GIL has its turn while this thread takes the lock again and again.

use std::cell::RefCell;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How long it takes at most to take a lock that is free. PyTorch copies 5 KB while it has it: 3 µs.
const FREE: Duration = Duration::from_micros(30);
/// How often in a row a lock is to be free that was not at first, and how long others have in between to come to it.
const QUIET: u32 = 3;
const PAUSE: Duration = Duration::from_micros(200);
/// How long all of this may take, which holds up every other thread.
const PATIENCE: Duration = Duration::from_millis(500);

thread_local! {
    /// The function that takes the lock for a moment, in a thread that is about to fork; and its result: a tensor lets
    /// the GIL go when it is dropped.
    static TAKE: RefCell<Option<Py<PyAny>>> = const { RefCell::new(None) };
    static RETURNED: RefCell<Vec<Py<PyAny>>> = const { RefCell::new(Vec::new()) };
}

/// Has the forks of this thread wait until a lock is free; None: no more.
#[pyfunction]
pub fn fork_waits_for(take: Option<Py<PyAny>>) {
    let before = (TAKE.replace(take), RETURNED.take());
    drop(before); // not within the cells: other code may run now
}

/// Waits for the lock, within `fork`.
extern "C" fn wait_before_fork() {
    if TAKE.with_borrow(Option::is_some) {
        Python::attach(wait); // `os.fork` has the GIL
    }
}

fn wait(py: Python<'_>) {
    let Some(take) = TAKE.with_borrow(|take| take.as_ref().map(|take| take.clone_ref(py))) else { return };
    let (began, mut wanted) = (Instant::now(), 1);
    while wanted > 0 && began.elapsed() < PATIENCE {
        let asked = Instant::now();
        let Ok(returned) = take.call0(py) else { return }; // the code that needs it in the child is told there
        wanted = if asked.elapsed() > FREE { QUIET } else { wanted - 1 };
        RETURNED.with_borrow_mut(|all| all.push(returned));
        if wanted > 0 {
            sleep(PAUSE); // with the GIL: who has drawn waits for it
        }
    }
}

/// Registers the hook.
pub fn register() -> PyResult<()> {
    // SAFETY: `wait_before_fork` does nothing unless a thread that holds the GIL has asked for it, and never unwinds.
    match unsafe { libc::pthread_atfork(Some(wait_before_fork), None, None) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error).into()),
    }
}
