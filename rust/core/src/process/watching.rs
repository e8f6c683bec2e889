//! Noticing that a call does not come back: a thread that looks, now and then, at what callers count anyway.
//!
//! Whoever is watched has a [`Pulse`], which it writes at each call by plain stores. One thread for all of a process looks at
//! them; it holds nothing of Python's and sleeps on a condition variable. It runs as long as something is watched, but for forks: it ends
//! before, so that the child has no half of it and the parent is a process of one thread, and begins anew when somebody
//! whom it watched calls next. A child begins with a [`Watch`] of its own, in case it was forked behind our back.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fork;
use super::signals::without_signals;

/// What a call adds to the word of a pulse, and takes away again: its number stands above the calls that have not returned.
const CALL: u64 = 1 << 16;
const INSIDE: u64 = 1;
const ALL_INSIDE: u64 = CALL - 1;

/// A look every so many parts of the patience, within limits.
const LOOKS: u32 = 8;
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(10);
/// How long a fork waits for the thread, which may be telling something; and for the kernel to forget it.
const GIVE_UP: Duration = Duration::from_secs(1);
const FORGOTTEN: Duration = Duration::from_millis(50);

/// This thread, as `pthread_self` has it.
#[inline]
pub fn this_thread() -> u64 {
    // SAFETY: asks for nothing and cannot fail.
    unsafe { libc::pthread_self() as u64 }
}

/// A sign of a pulse: the caller has reasons of its own to look twice.
pub const HELD: u8 = 1;
/// A sign of a pulse: there was a fork, and nobody watches any more.
pub const UNWATCHED: u8 = 2;
/// A sign of a pulse: what cut the last call off is no error of what it called.
pub const CUT: u8 = 4;

/// How a caller is doing. Callers exclude each other; who watches may read what is late.
#[derive(Default)]
pub struct Pulse {
    word: AtomicU64,
    /// The thread that has called last.
    thread: AtomicU64,
    signs: AtomicU8,
}

impl Pulse {
    /// A call begins.
    #[inline]
    pub fn enter(&self) {
        self.thread.store(this_thread(), Relaxed);
        self.word.store(self.word.load(Relaxed).wrapping_add(CALL + INSIDE), Relaxed);
    }

    /// It returns.
    #[inline]
    pub fn leave(&self) {
        self.word.store(self.word.load(Relaxed).wrapping_sub(INSIDE), Relaxed);
    }

    /// Whether a call has not returned.
    pub fn is_inside(&self) -> bool {
        self.word.load(Relaxed) & ALL_INSIDE != 0
    }

    /// What a call has to look at; 0 nearly always.
    #[inline]
    pub fn signs(&self) -> u8 {
        self.signs.load(Relaxed)
    }

    /// Sets or clears one of them.
    pub fn set_sign(&self, sign: u8, set: bool) {
        if set {
            self.signs.fetch_or(sign, Relaxed);
        } else {
            self.signs.fetch_and(!sign, Relaxed);
        }
    }
}

/// A call that does not come back.
pub struct Stall {
    /// The number that whoever is watched was given.
    pub key: u64,
    /// How long it has been looked at.
    pub waited: Duration,
    /// Who called, as `pthread_self` has it.
    pub thread: u64,
    pulse: Weak<Pulse>,
    word: u64,
}

impl Stall {
    /// Whether it still has not come back.
    pub fn lasts(&self) -> bool {
        self.pulse.upgrade().is_some_and(|pulse| pulse.word.load(Relaxed) == self.word)
    }
}

struct Watched {
    pulse: Weak<Pulse>,
    key: u64,
    patience: Duration,
    /// The word at the last look, since when it is the same, and how long that is to be when it is told next.
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
struct State {
    watched: Vec<Watched>,
    thread: Option<JoinHandle<()>>,
    /// Whether the thread is to end, and whether there is one that has not.
    stop: bool,
    running: bool,
    /// Forks that are under way.
    forks: u32,
    /// The kernel's number of the thread.
    number: u64,
}

/// What one process watches.
pub struct Watch {
    generation: u64,
    state: Mutex<State>,
    changed: Condvar,
    tell: fn(&Stall),
}

static WATCH: AtomicPtr<Watch> = AtomicPtr::new(std::ptr::null_mut());
/// Whether the process ends.
static OVER: AtomicBool = AtomicBool::new(false);

/// The watch of this process; `tell` is called by its thread, which holds nothing then.
///
/// Callers exclude each other: they hold Python's lock.
pub fn watch(tell: fn(&Stall)) -> &'static Watch {
    let generation = fork::generation();
    // SAFETY: NULL, or what a call before this one has made, which is never freed. What the parent has left is small.
    if let Some(watch) = unsafe { WATCH.load(Relaxed).as_ref() }
        && watch.generation == generation
    {
        return watch;
    }
    let (state, changed) = (Mutex::default(), Condvar::new());
    let watch = Box::leak(Box::new(Watch { generation, state, changed, tell }));
    WATCH.store(watch, Relaxed);
    watch
}

impl Watch {
    /// Watches a pulse from now on, or goes on after a fork; without a thread where the system has none to give.
    pub fn begin(&'static self, pulse: &Arc<Pulse>, key: u64, patience: Duration) {
        let mut state = self.state();
        if state.forks > 0 || OVER.load(Relaxed) {
            return; // at the next call
        }
        pulse.set_sign(UNWATCHED, false);
        let (weak, since) = (Arc::downgrade(pulse), Instant::now());
        if !state.watched.iter().any(|one| one.key == key && one.pulse.ptr_eq(&weak)) {
            state.watched.push(Watched { pulse: weak, key, patience, word: 0, since, next: patience });
        }
        state.stop = false;
        if !state.running {
            let named = std::thread::Builder::new().name("torchdata-watch".to_owned());
            state.thread = without_signals(|| named.spawn(move || self.run())).ok();
            state.running = state.thread.is_some();
        }
        drop(state);
        self.changed.notify_all(); // its patience may be shorter than that of the others
    }

    /// Watches it no more.
    pub fn end(&self, pulse: &Arc<Pulse>) {
        pulse.set_sign(UNWATCHED, false);
        self.state().watched.retain(|one| !std::ptr::eq(one.pulse.as_ptr(), Arc::as_ptr(pulse)));
        self.changed.notify_all();
    }

    /// A fork begins, or the process ends: there is no thread when this returns, unless it is held up in what it tells.
    /// The caller holds nothing that the thread might want.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stop = true;
        self.changed.notify_all();
        if state.thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id()) {
            return; // it is the thread itself that forks
        }
        let ended = self.changed.wait_timeout_while(state, GIVE_UP, |state| state.running);
        state = ended.unwrap_or_else(PoisonError::into_inner).0;
        if state.running {
            return;
        }
        let (thread, number) = (state.thread.take(), state.number);
        drop(state);
        if let Some(thread) = thread {
            let _ = thread.join(); // it cannot panic but in what it told
            // The kernel counts it for a moment longer.
            let (path, since) = (format!("/proc/self/task/{number}"), Instant::now());
            while since.elapsed() < FORGOTTEN && std::fs::exists(&path).unwrap_or(false) {
                std::thread::yield_now();
            }
        }
    }

    /// What is to come before the thread is stopped for a fork: nobody begins it, and callers begin it at their next call.
    pub fn fork_begins(&self) {
        let mut state = self.state();
        state.forks += 1;
        for one in &state.watched {
            if let Some(pulse) = one.pulse.upgrade() {
                pulse.set_sign(UNWATCHED, true);
            }
        }
    }

    /// The fork is over, in the parent.
    pub fn fork_is_over(&self) {
        let mut state = self.state();
        state.forks = state.forks.saturating_sub(1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    fn run(&self) {
        let mut state = self.state();
        state.number = thread_number();
        loop {
            state.watched.retain(|one| one.pulse.strong_count() > 0);
            // What it told may have forked: then this is the child, whose watch is another one.
            if state.stop || state.watched.is_empty() || fork::generation() != self.generation {
                break;
            }
            let now = Instant::now();
            let stalls: Vec<Stall> = state.watched.iter_mut().filter_map(|one| one.look(now)).collect();
            if !stalls.is_empty() {
                drop(state);
                stalls.iter().for_each(self.tell);
                state = self.state();
                continue;
            }
            let patience = state.watched.iter().map(|one| one.patience).min().unwrap_or(LONGEST);
            let pause = (patience / LOOKS).clamp(SHORTEST, LONGEST);
            state = self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.running = false;
        drop(state);
        self.changed.notify_all();
    }
}

/// For good: no thread is begun any more.
pub fn over() {
    OVER.store(true, Relaxed);
}

fn thread_number() -> u64 {
    #[cfg(target_os = "linux")]
    // SAFETY: asks for a number and cannot fail.
    return unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    #[cfg(not(target_os = "linux"))]
    0
}
