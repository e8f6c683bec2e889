//! The arguments and results of the queue's methods.

/// The number of a slot. Slots are numbered in order.
pub type Slot = u64;

/// The result of requesting the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Compute one item and [`put`](OrderedQueue::put) its outcome, or [`skip`](OrderedQueue::skip) the slot.
    Granted(Slot),
    /// The queue was full or held, or another worker used the source, until the timeout.
    TimedOut,
    /// The queue is closed or the source has ended, so no item is needed.
    Closed,
}

/// The result of requesting a submitted item.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim<T> {
    /// The item of a slot. The queue keeps a copy until the outcome is put.
    Given(Slot, T),
    /// No item is submitted, or the queue is held.
    TimedOut,
    /// The queue is closed, so results are dropped.
    Closed,
}

/// The outcome of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// A result.
    Item(T),
    /// An error instead of a result. Later results follow.
    Error(T),
    /// An error after which no item is computed until the consumer has received it.
    Break(T),
    /// The end, with the error that caused it, if any.
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
            Outcome::Error(it) => Some(View::Error(it)),
            Outcome::Break(it) => Some(View::Broken(it)),
            Outcome::End(error) => error.as_ref().map(View::Broken),
        }
    }
}

/// The result of requesting an outcome.
#[derive(Debug, PartialEq, Eq)]
pub enum Pop<T> {
    /// The next result.
    Item(T),
    /// An error of a worker, in its order.
    Error(T),
    /// An error of the source.
    Broken(T),
    /// The end of the results. This is also returned after an error that ended the results.
    Ended,
    /// The queue was closed before its end.
    Closed,
    /// No outcome was available before the timeout.
    TimedOut,
}

/// A view of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View<'a, T> {
    /// A submitted item that is not claimed.
    Waiting(&'a T),
    /// A submitted item that a worker has claimed.
    Running(&'a T),
    /// A result.
    Item(&'a T),
    /// An error instead of a result.
    Error(&'a T),
    /// An error of the source.
    Broken(&'a T),
}

impl<'a, T> View<'a, T> {
    /// The item or error in the slot.
    pub fn content(&self) -> &'a T {
        match self {
            View::Waiting(it) | View::Running(it) | View::Item(it) | View::Error(it) | View::Broken(it) => it,
        }
    }
}
