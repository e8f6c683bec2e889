//! A lock that fails instead of waiting, and that can detect whether the current thread holds it.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::sync::primitive::{AtomicUsize, Ordering};

/// A value that only one thread at a time can access. Unlike the release of a mutex, the release of an `Exclusive` need
/// not check for waiting threads. If the process forks while another thread holds the value, no thread of the child can
/// access it.
#[derive(Debug)]
pub struct Exclusive<T> {
    holder: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that has changed `holder` from 0 accesses the value, so the value moves from thread to
// thread.
unsafe impl<T: Send> Sync for Exclusive<T> {}

/// A guard that gives the current thread exclusive access to the value.
#[derive(Debug)]
pub struct Held<'a, T> {
    owner: &'a Exclusive<T>,
    /// Prevents the guard from being sent to another thread.
    _of_this_thread: PhantomData<*const ()>,
}

/// Returns the address of a thread-local variable, which is unique while its thread runs.
fn this_thread() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own) as usize)
}

impl<T> Exclusive<T> {
    /// Creates a value that no thread holds.
    pub fn new(value: T) -> Self {
        Self { holder: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    /// Returns a guard for the value, or None if any thread, even the current one, already holds the value.
    #[inline]
    pub fn try_hold(&self) -> Option<Held<'_, T>> {
        // SYNC(exclusive): pairs with the drop of `Held`.
        self.holder.compare_exchange(0, this_thread(), Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Held { owner: self, _of_this_thread: PhantomData })
    }

    /// Returns whether this thread holds the value.
    pub fn is_held_here(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread()
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SYNC(exclusive): pairs with `try_hold`.
        self.owner.holder.store(0, Ordering::Release);
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: only this thread holds the value.
        unsafe { &*self.owner.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: only this thread holds the value, through this guard.
        unsafe { &mut *self.owner.value.get() }
    }
}
