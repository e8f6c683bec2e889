//! What the queue is told and what it answers.

/// The number of a slot; slots are numbered in their order.
pub type Slot = u64;

/// The answer to a worker that asks for the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Make one item and [`put`](OrderedQueue::put) its outcome, or [`skip`](OrderedQueue::skip) the slot.
    Granted(Slot),
    /// Full, held, or another worker at the source for the whole time.
    TimedOut,
    /// The queue is closed or the source has ended: no item is to be made.
    Closed,
}

/// The answer to a worker that asks for a submitted item.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim<T> {
    /// The item of a slot, of which the queue keeps a copy until the outcome is there.
    Given(Slot, T),
    /// Nothing is submitted, or the queue is held.
    TimedOut,
    /// The queue is closed: results are not wanted any more.
    Closed,
}

/// The outcome of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T> {
    /// A result.
    Item(T),
    /// An error at the place of a result; others come after it.
    Error(T),
    /// An error after which no item is made before the consumer has it.
    Break(T),
    /// The end, with the error that is its cause if there is one.
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

/// The answer to a consumer that asks for a result.
#[derive(Debug, PartialEq, Eq)]
pub enum Pop<T> {
    /// The next result.
    Item(T),
    /// An error of a worker's at its place.
    Error(T),
    /// An error of the source.
    Broken(T),
    /// The end of the results, also after an error that has ended them.
    Ended,
    /// Somebody has closed the queue before its end.
    Closed,
    /// Nothing came in time.
    TimedOut,
}

/// A look at one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View<'a, T> {
    /// A submitted item that no worker has claimed.
    Waiting(&'a T),
    /// A submitted item that a worker is at.
    Running(&'a T),
    /// A result.
    Item(&'a T),
    /// An error at the place of a result.
    Error(&'a T),
    /// An error of the source.
    Broken(&'a T),
}

impl<'a, T> View<'a, T> {
    /// The item or error that lies there.
    pub fn content(&self) -> &'a T {
        match self {
            View::Waiting(it) | View::Running(it) | View::Item(it) | View::Error(it) | View::Broken(it) => it,
        }
    }
}
