//! Noticing that a call does not come back: a thread that looks, now and then, at counts that callers keep anyway.
//!
//! A watched caller has a [`Pulse`], which it writes at each call by plain stores. One thread of a process looks at all
//! of them; it holds nothing of Python's and sleeps on a [`Parker`]. It runs as long as something is watched, except
//! during forks: it ends before one, so that the child has no half of it and the parent is a process of one thread, and
//! begins anew at the next call of a watched caller. A child has a [`Watch`] of its own, in case it was forked without
//! that.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{Parker, Unparker};

use super::fork;
use super::signals::without_signals;

/// Terms that a call adds to the word of a pulse, and takes away again: its number stands above the calls that have not
/// returned.
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

    /// Returns the signs that a call has to look at; 0 nearly always.
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
    /// The number that the watched loader was given.
    pub key: u64,
    /// How long it has been looked at.
    pub waited: Duration,
    /// The thread that called, as `pthread_self` has it.
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
    thread: Option<Watcher>,
    /// Whether the thread is to end, and whether there is one that has not.
    stop: bool,
    running: bool,
    /// Threads that wait for its end.
    stoppers: Vec<Unparker>,
    /// Forks that are under way.
    forks: u32,
    /// The kernel's number of the thread.
    number: u64,
}

impl State {
    /// Has the thread look at the state again.
    fn wake(&self) {
        self.thread.iter().for_each(|watcher| watcher.wake.unpark());
    }
}

/// The watching thread.
struct Watcher {
    thread: JoinHandle<()>,
    /// Wakes it, to look at the state again.
    wake: Unparker,
}

/// The callers that one process watches.
pub struct Watch {
    generation: u64,
    state: Mutex<State>,
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
    // SAFETY: NULL, or made by a call before this one and never freed. The parent's, which a fork leaves, is small.
    if let Some(watch) = unsafe { WATCH.load(Relaxed).as_ref() }
        && watch.generation == generation
    {
        return watch;
    }
    let watch = Box::leak(Box::new(Watch { generation, state: Mutex::default(), tell }));
    WATCH.store(watch, Relaxed);
    watch
}

impl Watch {
    /// Watches a pulse from now on, or goes on after a fork; without a thread if the system has none to give.
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
        if state.running {
            state.wake(); // its patience may be shorter than that of the others
        } else {
            let named = std::thread::Builder::new().name("torchdata-watch".to_owned());
            let parker = Parker::new();
            let wake = parker.unparker().clone();
            state.thread =
                without_signals(|| named.spawn(move || self.run(&parker))).ok().map(|thread| Watcher { thread, wake });
            state.running = state.thread.is_some();
        }
    }

    /// Watches a pulse no more.
    pub fn end(&self, pulse: &Arc<Pulse>) {
        pulse.set_sign(UNWATCHED, false);
        let mut state = self.state();
        state.watched.retain(|one| !std::ptr::eq(one.pulse.as_ptr(), Arc::as_ptr(pulse)));
        state.wake();
    }

    /// Ends the thread, for a fork or at the end of the process; one that is held up in telling a stall is given up on.
    /// The caller holds nothing that the thread might want.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stop = true;
        state.wake();
        let is_thread = |one: &Watcher| one.thread.thread().id() == std::thread::current().id();
        if state.thread.as_ref().is_some_and(is_thread) {
            return; // it is the thread itself that forks
        }
        let (ended, deadline) = (Parker::new(), Instant::now() + GIVE_UP);
        while state.running {
            if Instant::now() >= deadline {
                return;
            }
            state.stoppers.push(ended.unparker().clone());
            drop(state);
            ended.park_deadline(deadline);
            state = self.state();
        }
        let (watcher, number) = (state.thread.take(), state.number);
        drop(state);
        if let Some(watcher) = watcher {
            let _ = watcher.thread.join(); // it cannot panic but while it tells a stall
            // The kernel counts it for a moment longer.
            let (path, since) = (format!("/proc/self/task/{number}"), Instant::now());
            while since.elapsed() < FORGOTTEN && std::fs::exists(&path).unwrap_or(false) {
                std::thread::yield_now();
            }
        }
    }

    /// Prepares for a fork, before the thread is stopped: nobody begins it meanwhile, and callers do at their next
    /// call.
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

    /// Runs in the thread, which sleeps on `parker`.
    fn run(&self, parker: &Parker) {
        let mut state = self.state();
        state.number = thread_number();
        loop {
            state.watched.retain(|one| one.pulse.strong_count() > 0);
            // `tell` may have forked: then this is the child, whose watch is another one.
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
            drop(state);
            parker.park_timeout(pause);
            state = self.state();
        }
        state.running = false;
        state.stoppers.drain(..).for_each(|stopper| stopper.unpark());
    }
}

/// Ends watching for good: no thread is begun any more.
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
