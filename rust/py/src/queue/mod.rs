//! Provides the Python class for the queue between worker threads, which read ahead, and the consumer thread.
//!
//! The objects in the queue change only while the GIL is held, so the queue does not change during a garbage
//! collection. A forked child may have inherited the queue's lock in locked state, so methods that need the lock raise
//! an error in the child.

mod hold;
mod reading;
mod window;

use std::mem::ManuallyDrop;
use std::time::Duration;

pub use hold::ReadAheadHold;
use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;
pub use reading::SourceReader;
use torchdata_core::process::fork;
use torchdata_core::queue::ordered::{OrderedQueue, Outcome, Pop, Reserve, Slot, View};
use torchdata_core::queue::position::{Index, QueuePosition};
use window::{Window, is_small};

use crate::enter::{self, Slices};
use crate::gil_cell::GilCell;
use crate::seconds::duration;

struct Entry {
    content: Py<PyAny>,
    index: Option<Index>,
    /// The saved state of the source after the item, or None.
    mark: Option<Py<PyAny>>,
    /// True if worker threads cannot change the item.
    is_plain: bool,
    is_small: bool,
}

impl Entry {
    fn new(content: Py<PyAny>) -> Self {
        Self { content, index: None, mark: None, is_plain: false, is_small: false }
    }

    fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.content)?;
        visit.call(&self.mark)
    }
}

type Queue = OrderedQueue<Entry>;

type ClaimedItems = (Vec<Slot>, Vec<Py<PyAny>>);

/// Waits until `sleep` returns true. Signals are handled before the caller takes an item, because a signal handler's
/// exception would lose a taken item.
fn wait_for(py: Python<'_>, sleep: impl FnMut(Duration) -> bool + Send) -> PyResult<()> {
    enter::wait(py, None, Slices::LONG, sleep, |_| Ok(false))?;
    py.check_signals()
}

/// The position of a queue's consumer: the source's state, the number of items delivered after this state, the number
/// of all delivered items, and the indices of the items delivered out of order.
type PositionParts = (Py<PyAny>, u64, u64, Vec<Index>);

/// The content of a queue's slot, as a tuple of the slot's number, kind, item or result, and saved source state. The
/// kind of a slot is "waiting", "running", "result" or "error".
type SlotParts = (Slot, &'static str, Py<PyAny>, Option<Py<PyAny>>);

#[pyclass(frozen, name = "ReadAheadQueue", module = "torchdata._native")]
pub struct ReadAheadQueue {
    queue: ManuallyDrop<Queue>,
    position: GilCell<Option<QueuePosition<Py<PyAny>>>>,
    /// Determines how many items to read ahead, or None if this number is fixed.
    window: GilCell<Option<Window>>,
    /// `generation` and `process` identify the process of the worker threads.
    generation: u64,
    process: u32,
    name: String,
    keeps: bool,
    /// The error message if the queue is closed, or None if a closed queue ends like an exhausted iterator.
    when_closed: Option<String>,
}

impl Drop for ReadAheadQueue {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            // SAFETY: the field is dropped only here, and `self` is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.queue) }
        }
    }
}

impl ReadAheadQueue {
    fn get(&self) -> PyResult<&Queue> {
        if self.generation == fork::generation() { Ok(&self.queue) } else { Err(self.is_the_parents()) }
    }

    #[cold]
    fn is_the_parents(&self) -> PyErr {
        PyRuntimeError::new_err(format!(
            "the threads of {} run in process {}, and this process is a forked child of it: begin a new iteration in the child",
            self.name, self.process
        ))
    }

    fn settle(&self, slot: Option<Slot>, outcome: Outcome<Entry>) -> PyResult<()> {
        let queue = self.get()?;
        match slot {
            Some(slot) => drop(queue.put(slot, outcome)),
            None => queue.append(outcome),
        }
        self.drop_if_closed(queue);
        Ok(())
    }

    /// Drops the results in a closed queue, because a traceback in a result would keep the worker threads alive.
    fn drop_if_closed(&self, queue: &Queue) {
        if !self.keeps && queue.is_closed() {
            drop(queue.drain());
        }
    }

    /// Unneeded states of the source are dropped after the access to the position ends, because dropping may run Python
    /// code.
    fn note(&self, py: Python<'_>, change: impl FnOnce(&mut QueuePosition<Py<PyAny>>)) {
        let spent = self.position.with(py, |state| {
            state.as_mut().map(|state| {
                change(state);
                (state.spent.pop(), if state.spent.is_empty() { Vec::new() } else { std::mem::take(&mut state.spent) })
            })
        });
        drop(spent);
    }

    /// Releases the slot of an item that was already delivered before the loader resumed.
    fn skip(&self, py: Python<'_>, slot: Slot, index: Index, mark: Option<Py<PyAny>>) -> PyResult<()> {
        self.get()?.skip(slot);
        if let Some(mark) = mark {
            self.note(py, |state| state.note_late(index, mark));
        }
        Ok(())
    }

    fn deliver(&self, py: Python<'_>, entry: Entry) -> Py<PyAny> {
        if let Some(index) = entry.index {
            let mut received = 0;
            self.note(py, |state| {
                state.note(index, entry.mark);
                received = state.received();
            });
            let size = self.window.with(py, |window| {
                window.as_mut().and_then(|window| {
                    let before = window.size();
                    window.note(entry.is_small, received);
                    (window.size() != before).then_some(window.size())
                })
            });
            if let Some(size) = size {
                self.queue.set_capacity(size);
            }
        }
        entry.content
    }

    fn claimed(
        &self,
        py: Python<'_>,
        limits: (usize, usize),
        sharers: usize,
        mut take: impl FnMut(&mut Entry) -> (Py<PyAny>, bool),
    ) -> PyResult<Option<ClaimedItems>> {
        let queue = self.get()?;
        loop {
            match queue.claim_some(limits, sharers, |entry| entry.is_small, &mut take) {
                Some((slots, _)) if slots.is_empty() => wait_for(py, |slice| queue.wait_claimable(slice))?,
                claimed => return Ok(claimed),
            }
        }
    }
}

#[pymethods]
impl ReadAheadQueue {
    #[new]
    #[pyo3(signature = (name, capacity, *, in_order=true, keeps=true, when_closed=None, position=None, grows=None))]
    fn new(
        name: String,
        capacity: usize,
        in_order: bool,
        keeps: bool,
        when_closed: Option<String>,
        position: Option<(Py<PyAny>, u64, Vec<Index>)>,
        grows: Option<(usize, u64, u64)>,
    ) -> PyResult<Self> {
        if capacity == 0 {
            return Err(PyValueError::new_err("a queue holds at least 1 item, but capacity is 0"));
        }
        let position = position.map(|(mark, steps, ahead)| QueuePosition::new(mark, steps, ahead));
        let received = position.as_ref().map_or(0, QueuePosition::received);
        let window = grows.map(|(most, row, ahead)| Window::new(capacity, most, row, received, ahead));
        let capacity = window.map_or(capacity, |window| window.size());
        Ok(Self {
            queue: ManuallyDrop::new(OrderedQueue::new(capacity, in_order)),
            position: GilCell::new(position),
            window: GilCell::new(window),
            generation: fork::generation(),
            process: std::process::id(),
            name,
            keeps,
            when_closed,
        })
    }

    fn reserve(&self, py: Python<'_>) -> PyResult<Option<Slot>> {
        let queue = self.get()?;
        loop {
            match queue.try_reserve() {
                Reserve::Granted(slot) => return Ok(Some(slot)),
                Reserve::Closed => return Ok(None),
                Reserve::TimedOut => wait_for(py, |slice| queue.wait_reservable(slice))?,
            }
        }
    }

    fn claim(&self, py: Python<'_>) -> PyResult<Option<(Slot, Py<PyAny>)>> {
        let claimed = self.claimed(py, (1, 1), 1, |entry| (entry.content.clone_ref(py), !entry.is_plain))?;
        Ok(claimed.and_then(|(slots, items)| slots.into_iter().zip(items).next()))
    }

    fn leave_source(&self, slot: Slot) -> PyResult<()> {
        self.get().map(|queue| queue.leave_source(slot))
    }

    /// Waits for submitted items. Claims one large item, or `least` to `most` small items, for one of `sharers`
    /// workers.
    fn claim_some(&self, py: Python<'_>, least: usize, most: usize, sharers: usize) -> PyResult<Option<ClaimedItems>> {
        let take = |entry: &mut Entry| (std::mem::replace(&mut entry.content, py.None()), false);
        self.claimed(py, (least, most), sharers, take)
    }

    fn put_some(&self, py: Python<'_>, slots: Vec<Slot>, results: Vec<Py<PyAny>>) -> PyResult<()> {
        let queue = self.get()?;
        let results = results.into_iter().map(|result| (is_small(result.bind(py)), result));
        drop(queue.put_some(slots.into_iter().zip(results), |rest, (is_small, content)| {
            Outcome::Item(Entry { content, is_small: rest.is_small && is_small, ..rest })
        }));
        self.drop_if_closed(queue);
        Ok(())
    }

    fn fail_claimed(&self, slot: Slot, error: Py<PyAny>) -> PyResult<()> {
        let queue = self.get()?;
        drop(
            queue.put_some([(slot, error)], |rest, content| Outcome::Error(Entry { content, is_small: false, ..rest })),
        );
        self.drop_if_closed(queue);
        Ok(())
    }

    fn hand_back(&self, slots: Vec<Slot>, items: Vec<Py<PyAny>>) -> PyResult<()> {
        drop(self.get()?.hand_back(slots.into_iter().zip(items).collect(), |entry, item| entry.content = item));
        Ok(())
    }

    #[pyo3(signature = (slot, item, mark=None))]
    fn put(&self, slot: Slot, item: Py<PyAny>, mark: Option<Py<PyAny>>) -> PyResult<()> {
        self.settle(Some(slot), Outcome::Item(Entry { mark, ..Entry::new(item) }))
    }

    fn put_and_reserve(
        &self,
        slot: Slot,
        item: Py<PyAny>,
        index: Index,
        mark: Option<Py<PyAny>>,
    ) -> PyResult<Option<Slot>> {
        let queue = self.get()?;
        let entry = Entry { index: Some(index), mark, ..Entry::new(item) };
        let (copy, next) = queue.put_and_reserve(slot, Outcome::Item(entry));
        drop(copy);
        self.drop_if_closed(queue);
        Ok(next)
    }

    #[pyo3(signature = (slot, error, index=None, mark=None))]
    fn fail(&self, slot: Slot, error: Py<PyAny>, index: Option<Index>, mark: Option<Py<PyAny>>) -> PyResult<()> {
        self.settle(Some(slot), Outcome::Error(Entry { index, mark, ..Entry::new(error) }))
    }

    /// Stores an error of the source. After the consumer has received the error, workers read the source again.
    fn break_off(&self, slot: Slot, error: Py<PyAny>) -> PyResult<()> {
        self.settle(Some(slot), Outcome::Break(Entry::new(error)))
    }

    #[pyo3(signature = (slot, error=None))]
    fn finish(&self, slot: Option<Slot>, error: Option<Py<PyAny>>) -> PyResult<()> {
        self.settle(slot, Outcome::End(error.map(Entry::new)))
    }

    /// Submits an item for the worker threads. `is_plain` means that worker threads cannot change the item.
    fn submit(&self, item: Py<PyAny>, is_plain: bool) -> PyResult<()> {
        self.get().map(|queue| queue.submit(Entry { is_plain, ..Entry::new(item) }))
    }

    fn append(&self, item: Py<PyAny>) -> PyResult<()> {
        self.settle(None, Outcome::Item(Entry::new(item)))
    }

    fn append_error(&self, error: Py<PyAny>) -> PyResult<()> {
        self.settle(None, Outcome::Error(Entry::new(error)))
    }

    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.get()?;
        if queue.wait_filled(Duration::ZERO) { Ok(()) } else { wait_for(py, |slice| queue.wait_filled(slice)) }
    }

    /// Returns the next result, or raises the result if it is an exception. Raises StopIteration at the end.
    fn pop(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let queue = self.get()?;
        loop {
            match queue.try_pop() {
                Pop::Item(entry) => return Ok(self.deliver(py, entry)),
                Pop::Error(entry) => return Err(PyErr::from_value(self.deliver(py, entry).into_bound(py))),
                Pop::Ended => return Err(PyStopIteration::new_err(())),
                Pop::Closed => {
                    let words = self.when_closed.clone();
                    return Err(words.map_or_else(|| PyStopIteration::new_err(()), PyRuntimeError::new_err));
                }
                Pop::TimedOut => wait_for(py, |slice| queue.wait_filled(slice))?,
            }
        }
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Returns the next result. A loop in C, such as `list(queue)`, stores the result before a signal handler can raise
    /// an exception, so that the result is not lost.
    fn __next__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.pop(py)
    }

    /// Appends the next result to a list. No signals are handled between taking and appending the result.
    fn pop_into(&self, hand: &Bound<'_, PyList>) -> PyResult<()> {
        hand.append(self.pop(hand.py())?)
    }

    fn position(&self, py: Python<'_>) -> Option<PositionParts> {
        self.position.with(py, |state| {
            let state = state.as_ref()?;
            Some((state.mark.clone_ref(py), state.steps, state.received(), state.ahead().collect()))
        })
    }

    /// Returns the number of successive small items, and an upper limit for the number of undelivered items.
    fn growth(&self, py: Python<'_>) -> Option<(u64, u64)> {
        let received = self.position.with(py, |state| state.as_ref().map_or(0, QueuePosition::received));
        let window = self.window.with(py, |window| *window)?;
        Some((window.row, window.ahead_of(received)))
    }

    fn hold(slf: Bound<'_, Self>) -> PyResult<ReadAheadHold> {
        slf.get().get()?;
        Ok(ReadAheadHold::on(slf.unbind()))
    }

    fn wait_idle(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let queue = self.get()?;
        enter::wait(py, Some(duration(seconds)), Slices::LONG, |slice| queue.wait_idle(slice), |_| Ok(false))
    }

    fn close(&self) {
        if let Ok(queue) = self.get() {
            queue.close();
            if !self.keeps {
                drop(queue.drain());
            }
        }
    }

    fn slots(&self, py: Python<'_>) -> PyResult<Vec<SlotParts>> {
        let mut slots = Vec::new();
        self.get()?.try_for_each(|slot, view| {
            let kind = match view {
                View::Waiting(_) => "waiting",
                View::Running(_) => "running",
                View::Item(_) => "result",
                View::Error(_) => "error",
            };
            let entry = view.content();
            let mark = entry.mark.as_ref().map(|mark| mark.clone_ref(py));
            slots.push((slot, kind, entry.content.clone_ref(py), mark));
            Ok::<_, PyErr>(())
        })?;
        Ok(slots)
    }

    fn exchange(&self, slot: Slot, content: Py<PyAny>) -> PyResult<()> {
        drop(self.get()?.exchange(slot, Entry::new(content)));
        Ok(())
    }

    #[getter]
    fn is_awaited(&self) -> PyResult<bool> {
        Ok(self.get()?.is_awaited())
    }

    #[getter]
    fn get_capacity(&self) -> PyResult<usize> {
        Ok(self.get()?.capacity())
    }

    #[setter]
    fn set_capacity(&self, capacity: usize) -> PyResult<()> {
        self.get().map(|queue| queue.set_capacity(capacity))
    }

    #[getter]
    fn is_inherited(&self) -> bool {
        self.get().is_err()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.get().map_or(true, Queue::is_closed)
    }

    #[getter]
    fn finished(&self) -> bool {
        self.get().is_ok_and(Queue::is_finished)
    }

    #[getter]
    fn held(&self) -> bool {
        self.get().is_ok_and(Queue::is_held)
    }

    fn __len__(&self) -> usize {
        self.get().map_or(0, Queue::len)
    }

    /// This method waits for the queue's lock, because all traversals by the garbage collector must visit the same
    /// objects. In a forked child, no object is visited, because the child's copy of the lock may never be released.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(queue) = self.get() else { return Ok(()) };
        queue.try_for_each(|_, view| view.content().visit(&visit))?;
        // SAFETY: the garbage collector holds the GIL during this call, but provides no interpreter token.
        let py = unsafe { Python::assume_attached() };
        self.position.with(py, |one| one.iter().flat_map(QueuePosition::marks).try_for_each(|mark| visit.call(mark)))
    }

    fn __clear__(&self, py: Python<'_>) {
        if let Ok(queue) = self.get() {
            queue.close();
            drop(queue.drain());
            drop(self.position.with(py, Option::take));
        }
    }
}
