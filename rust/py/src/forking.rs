//! Delays a fork until the lock of PyTorch's global generator is free, which only a Python function can take.
//!
//! The hook is registered in the C library, because it must run after Python's own hooks, which may release the GIL.
//! The GIL is not released between this hook and the fork, so no thread starts to draw random numbers in between. The
//! forking thread takes and releases the lock repeatedly, so that a thread that waits for the lock without the GIL can
//! take it.

use std::cell::RefCell;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// A call of `take` that lasts longer than this has waited for the lock. A call that does not wait lasts about 3 µs.
const UNCONTENDED: Duration = Duration::from_micros(30);
/// After a wait, the number of further calls that must find the lock free before the process forks. Between two calls,
/// other threads can take the lock for the time `PAUSE`.
const FREE_CALLS: u32 = 3;
const PAUSE: Duration = Duration::from_micros(200);
/// The maximum delay of a fork, during which threads that need the GIL are blocked.
const PATIENCE: Duration = Duration::from_millis(500);

thread_local! {
    /// In a thread that is about to fork, the function that takes and releases PyTorch's lock, and returns a tensor.
    /// `RETURNED` keeps these tensors until after the fork, because dropping a tensor releases the GIL.
    static TAKE: RefCell<Option<Py<PyAny>>> = const { RefCell::new(None) };
    static RETURNED: RefCell<Vec<Py<PyAny>>> = const { RefCell::new(Vec::new()) };
}

/// Delays forks by this thread until `take` acquires and releases a lock without waiting. If `take` is None, forks are
/// not delayed.
#[pyfunction]
pub fn fork_waits_for(take: Option<Py<PyAny>>) {
    let before = (TAKE.replace(take), RETURNED.take());
    drop(before); // after both cells are released, because dropping may run other code
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
        let Ok(returned) = take.call0(py) else { return }; // if the child needs the lock, the child reports the error
        wanted = if asked.elapsed() > UNCONTENDED { FREE_CALLS } else { wanted - 1 };
        RETURNED.with_borrow_mut(|all| all.push(returned));
        if wanted > 0 {
            sleep(PAUSE); // with the GIL held, so that threads that have drawn a number wait for the GIL
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
