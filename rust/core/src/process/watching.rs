//! Watches calls of loaders in a separate thread, and reports calls that do not return. The watching thread stops
//! before a fork, so that the child does not inherit incomplete state.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fork;
use super::signals::without_signals;

/// The upper bits of a [`Pulse`] contain the number of all calls so far, and each call adds `CALL`. The lower bits
/// contain the number of calls that have not returned yet.
const CALL: u64 = 1 << 16;
const INSIDE: u64 = 1;
const ALL_INSIDE: u64 = CALL - 1;

const CHECKS: u32 = 8;
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(10);
/// The maximum time that a fork waits for the watching thread to exit.
const GIVE_UP: Duration = Duration::from_secs(1);
const FORGOTTEN: Duration = Duration::from_millis(50);

#[inline]
pub fn this_thread() -> u64 {
    // SAFETY: `pthread_self` is always safe to call.
    unsafe { libc::pthread_self() as u64 }
}

/// This flag of a [`Pulse`] means that each call must first check whether it has to wait, for example because the
/// loader's state is being saved.
pub const HELD: u8 = 1;
/// This flag of a [`Pulse`] means that a fork has stopped the watching thread.
pub const UNWATCHED: u8 = 2;
/// This flag of a [`Pulse`] means that an asynchronous exception, such as KeyboardInterrupt, has interrupted the last
/// call.
pub const CUT: u8 = 4;

#[derive(Default)]
pub struct Pulse {
    word: AtomicU64,
    thread: AtomicU64,
    signs: AtomicU8,
}

impl Pulse {
    #[inline]
    pub fn enter(&self) {
        self.thread.store(this_thread(), Relaxed);
        self.word.store(self.word.load(Relaxed).wrapping_add(CALL + INSIDE), Relaxed);
    }

    #[inline]
    pub fn leave(&self) {
        self.word.store(self.word.load(Relaxed).wrapping_sub(INSIDE), Relaxed);
    }

    pub fn is_inside(&self) -> bool {
        self.word.load(Relaxed) & ALL_INSIDE != 0
    }

    #[inline]
    pub fn signs(&self) -> u8 {
        self.signs.load(Relaxed)
    }

    pub fn set_sign(&self, sign: u8, set: bool) {
        if set {
            self.signs.fetch_or(sign, Relaxed);
        } else {
            self.signs.fetch_and(!sign, Relaxed);
        }
    }
}

/// A report about a call that has not returned for some time.
pub struct Stall {
    pub key: u64,
    /// The time since the watching thread first noticed that the call had not returned.
    pub waited: Duration,
    /// The id of the calling thread, as returned by `pthread_self`.
    pub thread: u64,
    pulse: Weak<Pulse>,
    word: u64,
}

impl Stall {
    pub fn lasts(&self) -> bool {
        self.pulse.upgrade().is_some_and(|pulse| pulse.word.load(Relaxed) == self.word)
    }
}

struct Watched {
    pulse: Weak<Pulse>,
    key: u64,
    patience: Duration,
    word: u64,
    since: Instant,
    next: Duration,
}

impl Watched {
    fn look(&mut self, now: Instant) -> Option<Stall> {
        let pulse = self.pulse.upgrade()?;
        let word = pulse.word.load(Relaxed);
        if word != self.word || word & ALL_INSIDE == 0 {
            (self.word, self.since, self.next) = (word, now, self.patience);
            return None;
        }
        let waited = now - self.since;
        if waited < self.next {
            return None;
        }
        self.next = self.next.saturating_mul(2);
        let thread = pulse.thread.load(Relaxed);
        Some(Stall { key: self.key, waited, thread, pulse: self.pulse.clone(), word })
    }
}

#[derive(Default)]
struct WatchState {
    watched: Vec<Watched>,
    thread: Option<JoinHandle<()>>,
    stop: bool,
    running: bool,
    forks: u32,
    number: u64,
}

pub struct Watch {
    generation: u64,
    state: Mutex<WatchState>,
    wake: Condvar,
    ended: Condvar,
    report: fn(&Stall),
}

static WATCH: AtomicPtr<Watch> = AtomicPtr::new(std::ptr::null_mut());
static OVER: AtomicBool = AtomicBool::new(false);

pub fn watch(report: fn(&Stall)) -> &'static Watch {
    let generation = fork::generation();
    loop {
        // SYNC(watch): pairs with the exchange below. A thread that reads the pointer also reads the initialized
        // `Watch`.
        let current = WATCH.load(Acquire);
        // SAFETY: the pointer is null or points to a `Watch`, which is never freed.
        if let Some(watch) = unsafe { current.as_ref() }
            && watch.generation == generation
        {
            return watch;
        }
        let (state, wake, ended) = (Mutex::default(), Condvar::new(), Condvar::new());
        let new = Box::into_raw(Box::new(Watch { generation, state, wake, ended, report }));
        // SYNC(watch): pairs with the load above.
        if WATCH.compare_exchange(current, new, AcqRel, Relaxed).is_err() {
            // SAFETY: `new` was created above, and the exchange failed, so no other thread has seen the pointer.
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

impl Watch {
    /// Calls that take longer than `patience` are reported.
    pub fn begin(&'static self, pulse: &Arc<Pulse>, key: u64, patience: Duration) {
        let mut state = self.state();
        if state.forks > 0 || OVER.load(Relaxed) {
            return; // a later call starts the thread
        }
        pulse.set_sign(UNWATCHED, false);
        let (weak, since) = (Arc::downgrade(pulse), Instant::now());
        if !state.watched.iter().any(|one| one.key == key && one.pulse.ptr_eq(&weak)) {
            state.watched.push(Watched { pulse: weak, key, patience, word: 0, since, next: patience });
        }
        state.stop = false;
        if state.running {
            self.wake.notify_all();
        } else {
            let named = std::thread::Builder::new().name("torchdata-watch".to_owned());
            state.thread = without_signals(|| named.spawn(move || self.run())).ok();
            state.running = state.thread.is_some();
        }
    }

    pub fn end(&self, pulse: &Arc<Pulse>) {
        pulse.set_sign(UNWATCHED, false);
        let mut state = self.state();
        state.watched.retain(|one| !std::ptr::eq(one.pulse.as_ptr(), Arc::as_ptr(pulse)));
        self.wake.notify_all();
    }

    /// Stops the watching thread before a fork or at the end of the process. The caller must not hold the GIL or any
    /// lock that the watching thread may need.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stop = true;
        self.wake.notify_all();
        let is_thread = |one: &JoinHandle<()>| one.thread().id() == std::thread::current().id();
        if state.thread.as_ref().is_some_and(is_thread) {
            return; // the watching thread itself forks
        }
        let waited = self.ended.wait_timeout_while(state, GIVE_UP, |state| state.running);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.running {
            return;
        }
        let (thread, number) = (state.thread.take(), state.number);
        drop(state);
        if let Some(thread) = thread {
            let _ = thread.join();
            // After `join`, waits until the kernel no longer lists the exited thread.
            let (path, since) = (format!("/proc/self/task/{number}"), Instant::now());
            while since.elapsed() < FORGOTTEN && std::fs::exists(&path).unwrap_or(false) {
                std::thread::yield_now();
            }
        }
    }

    /// Prevents other threads from starting the watching thread during a fork.
    pub fn fork_begins(&self) {
        let mut state = self.state();
        state.forks += 1;
        for one in &state.watched {
            if let Some(pulse) = one.pulse.upgrade() {
                pulse.set_sign(UNWATCHED, true);
            }
        }
    }

    pub fn fork_is_over(&self) {
        let mut state = self.state();
        state.forks = state.forks.saturating_sub(1);
    }

    fn state(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.state();
        state.number = thread_number();
        loop {
            state.watched.retain(|one| one.pulse.strong_count() > 0);
            // If a callback has called `os.fork`, the loop ends in the forked child, because the child uses a separate
            // `Watch`.
            if state.stop || state.watched.is_empty() || fork::generation() != self.generation {
                break;
            }
            let now = Instant::now();
            let stalls: Vec<Stall> = state.watched.iter_mut().filter_map(|one| one.look(now)).collect();
            if !stalls.is_empty() {
                drop(state);
                stalls.iter().for_each(self.report);
                state = self.state();
                continue;
            }
            let patience = state.watched.iter().map(|one| one.patience).min().unwrap_or(LONGEST);
            let pause = (patience / CHECKS).clamp(SHORTEST, LONGEST);
            (state, _) = self.wake.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
        }
        state.running = false;
        self.ended.notify_all();
    }
}

pub fn over() {
    OVER.store(true, Relaxed);
}

fn thread_number() -> u64 {
    #[cfg(target_os = "linux")]
    // SAFETY: the system call `gettid` only returns a number, and accesses no memory.
    return unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    #[cfg(not(target_os = "linux"))]
    0
}
