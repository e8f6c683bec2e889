//! Defines the argument and result types of the methods of `OrderedQueue`.

/// The number of a slot. Slots are numbered in the order of their reservation.
pub type Slot = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// The worker must compute one item for the slot, and then call [`put`](OrderedQueue::put) or
    /// [`skip`](OrderedQueue::skip).
    Granted(Slot),
    TimedOut,
    /// No more items are needed, because the queue is closed or the source has ended.
    Closed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    Item(T),
    /// An error that replaces one item. The results of later items may follow the error.
    Error(T),
    /// An error that stops the workers until the consumer has received the error.
    Break(T),
    /// The end of the results, with the exception (if any) that ended the source.
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

#[derive(Debug, PartialEq, Eq)]
pub enum Pop<T> {
    Item(T),
    /// An error that a worker or the source has raised.
    Error(T),
    Ended,
    Closed,
    TimedOut,
}

/// The content of one slot, as shown to a thread that inspects the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View<'a, T> {
    Waiting(&'a T),
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
