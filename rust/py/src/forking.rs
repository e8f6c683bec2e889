//! Delays forks until the lock of PyTorch's global random generator is free, because a child could inherit the locked
//! lock.
//!
//! Python's own fork hooks may release the GIL, so this module uses a hook of the C library, which runs after Python's
//! hooks. The GIL stays held from the hook to the fork, so that no other thread begins to draw random numbers.

use std::cell::RefCell;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// If a call of `take` lasts longer than this duration, another thread held PyTorch's lock, because taking a free lock
/// lasts about 3 µs.
const UNCONTENDED: Duration = Duration::from_micros(30);
/// If another thread held PyTorch's lock, the fork waits until `FREE_CALLS` successive calls of `take` have found the
/// lock free.
const FREE_CALLS: u32 = 3;
const PAUSE: Duration = Duration::from_micros(200);
/// The maximum delay of a fork. Threads that need the GIL are blocked while a fork is delayed.
const PATIENCE: Duration = Duration::from_millis(500);

thread_local! {
    /// `get_state` of PyTorch's random generator, which briefly locks the generator, and returns a tensor. `RETURNED`
    /// keeps the returned tensors until after the fork, because dropping a tensor would release the GIL.
    static TAKE: RefCell<Option<Py<PyAny>>> = const { RefCell::new(None) };
    static RETURNED: RefCell<Vec<Py<PyAny>>> = const { RefCell::new(Vec::new()) };
}

/// Delays each fork in this thread until `take` can take its lock without waiting.
#[pyfunction]
pub fn fork_waits_for(take: Option<Py<PyAny>>) {
    let before = (TAKE.replace(take), RETURNED.take());
    drop(before); // dropped after the cells are released, because dropping may run other code
}

extern "C" fn wait_before_fork() {
    if TAKE.with_borrow(Option::is_some) {
        Python::attach(wait); // the thread holds the GIL, because `os.fork` does not release the GIL
    }
}

fn wait(py: Python<'_>) {
    let Some(take) = TAKE.with_borrow(|take| take.as_ref().map(|take| take.clone_ref(py))) else { return };
    let (began, mut wanted) = (Instant::now(), 1);
    while wanted > 0 && began.elapsed() < PATIENCE {
        let asked = Instant::now();
        let Ok(returned) = take.call0(py) else { return }; // a child that needs the lock will report the error
        wanted = if asked.elapsed() > UNCONTENDED { FREE_CALLS } else { wanted - 1 };
        RETURNED.with_borrow_mut(|all| all.push(returned));
        if wanted > 0 {
            sleep(PAUSE); // the GIL is held, so that threads that have drawn a number wait for the GIL
        }
    }
}

pub fn register() -> PyResult<()> {
    // SAFETY: `wait_before_fork` never unwinds, and does nothing unless this thread has called `fork_waits_for`.
    match unsafe { libc::pthread_atfork(Some(wait_before_fork), None, None) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error).into()),
    }
}
