//! The argument and result types of the queue's methods.

/// The number of a slot, in the order of reservation.
pub type Slot = u64;

/// The result of a request to use the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// The worker must compute one item, then call [`put`](OrderedQueue::put) or [`skip`](OrderedQueue::skip).
    Granted(Slot),
    /// Until the timeout, the queue was full or on hold, or another worker used the source.
    TimedOut,
    /// The queue is closed or the source has ended, so no more items are needed.
    Closed,
}

/// The content of a slot that a worker has completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    Item(T),
    /// An error instead of a result. Later slots may still have results.
    Error(T),
    /// An error after which no item is computed until the consumer has received the error.
    Break(T),
    /// The end of the results, and the exception by which the source ended, if any.
    End(Option<T>),
}

impl<T> Outcome<T> {
    pub(super) fn into_content(self) -> Option<T> {
        match self {
            Outcome::Item(it) | Outcome::Error(it) | Outcome::Break(it) => Some(it),
            Outcome::End(error) => error,
        }
    }

    pub(super) fn content_mut(&mut self) -> Option<&mut T> {
        match self {
            Outcome::Item(it) | Outcome::Error(it) | Outcome::Break(it) => Some(it),
            Outcome::End(error) => error.as_mut(),
        }
    }

    pub(super) fn view(&self) -> Option<View<'_, T>> {
        match self {
            Outcome::Item(it) => Some(View::Item(it)),
            Outcome::Error(it) | Outcome::Break(it) => Some(View::Error(it)),
            Outcome::End(error) => error.as_ref().map(View::Error),
        }
    }
}

/// The result of a request for the next outcome.
#[derive(Debug, PartialEq, Eq)]
pub enum Pop<T> {
    Item(T),
    /// An error of a worker, returned in the order of the items, or of the source.
    Error(T),
    Ended,
    /// The queue was closed before the results ended.
    Closed,
    /// No outcome was available before the timeout.
    TimedOut,
}

/// The content of one slot, as shown to a thread that inspects the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View<'a, T> {
    /// A submitted item that no worker has claimed.
    Waiting(&'a T),
    /// A submitted item that a worker has claimed and is processing.
    Running(&'a T),
    Item(&'a T),
    Error(&'a T),
}

impl<'a, T> View<'a, T> {
    pub fn content(&self) -> &'a T {
        match self {
            View::Waiting(it) | View::Running(it) | View::Item(it) | View::Error(it) => it,
        }
    }
}
