//! Delays a fork until the lock of PyTorch's global generator is free, which only a Python function can take.
//!
//! The hook of the C library is used because it runs after Python's own hooks, which may release the GIL. The GIL is
//! not released between this hook and the fork, so other threads cannot start to draw random numbers. The forking
//! thread takes and releases the lock repeatedly, so that a thread that waits for the lock without the GIL can take it.

use std::cell::RefCell;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// A call of `take` that lasts longer than this had to wait, because a call without a wait lasts about 3 µs.
const UNCONTENDED: Duration = Duration::from_micros(30);
/// After a wait, this many further calls must find the lock free before the process forks. Other threads can take the
/// lock during `PAUSE` between two calls.
const FREE_CALLS: u32 = 3;
const PAUSE: Duration = Duration::from_micros(200);
/// A fork is delayed by at most this time, because threads that need the GIL are blocked meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);

thread_local! {
    /// The function that takes and releases PyTorch's lock, in a thread that is about to fork. `RETURNED` keeps the
    /// results of this function until after the fork, because dropping a tensor releases the GIL.
    static TAKE: RefCell<Option<Py<PyAny>>> = const { RefCell::new(None) };
    static RETURNED: RefCell<Vec<Py<PyAny>>> = const { RefCell::new(Vec::new()) };
}

/// Makes forks of this thread wait until the lock that `take` takes and releases is free. None disables the wait.
#[pyfunction]
pub fn fork_waits_for(take: Option<Py<PyAny>>) {
    let before = (TAKE.replace(take), RETURNED.take());
    drop(before); // outside of the cells, because dropping may run other code
}

extern "C" fn wait_before_fork() {
    if TAKE.with_borrow(Option::is_some) {
        Python::attach(wait); // `os.fork` holds the GIL
    }
}

fn wait(py: Python<'_>) {
    let Some(take) = TAKE.with_borrow(|take| take.as_ref().map(|take| take.clone_ref(py))) else { return };
    let (began, mut wanted) = (Instant::now(), 1);
    while wanted > 0 && began.elapsed() < PATIENCE {
        let asked = Instant::now();
        let Ok(returned) = take.call0(py) else { return }; // the child reports the error when it needs the lock
        wanted = if asked.elapsed() > UNCONTENDED { FREE_CALLS } else { wanted - 1 };
        RETURNED.with_borrow_mut(|all| all.push(returned));
        if wanted > 0 {
            sleep(PAUSE); // with the GIL held, so that threads that have drawn a number wait for it
        }
    }
}

pub fn register() -> PyResult<()> {
    // SAFETY: `wait_before_fork` does nothing unless a thread with the GIL has requested it, and never unwinds.
    match unsafe { libc::pthread_atfork(Some(wait_before_fork), None, None) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error).into()),
    }
}
