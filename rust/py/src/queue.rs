//! The queue of the `prefetch` pipe: holds Python objects, waits without the GIL.
//!
//! One Python thread produces, another one consumes; both use one [`PyPrefetchQueue`]. References go into the queue and
//! out of it with the GIL held alone, and threads that wait without it move none: so the collector of cyclic garbage,
//! which holds the GIL, sees a queue that stands still. A process that was forked from the one that made the queue has
//! no producer thread and may have inherited a held lock, so there every method refuses and nothing is dropped.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use torchdata_core::queue::ordered::{Hold, LONGEST_SLICE, Pop, PrefetchQueue, Reserve};

use crate::gil_cell::GilCell;
use crate::seconds::duration;

type Queue = PrefetchQueue<Py<PyAny>, Py<PyAny>>;

/// Items, and the exception after them.
type Snapshot = (Vec<Py<PyAny>>, Option<Py<PyAny>>);

/// A bounded queue between a prefetching thread and its consumer.
#[pyclass(frozen, name = "PrefetchQueue", module = "torchdata._native")]
pub struct PyPrefetchQueue {
    queue: ManuallyDrop<Queue>,
    /// The process that the producer thread lives in.
    process: u32,
}

impl Drop for PyPrefetchQueue {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: dropped here only, and `self` is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.queue) }
        }
    }
}

impl PyPrefetchQueue {
    fn get(&self) -> PyResult<&Queue> {
        if self.process == std::process::id() {
            return Ok(&self.queue);
        }
        Err(PyRuntimeError::new_err(format!(
            "this iteration prefetches in a thread of process {}, which a forked child does not have; start a new \
             iteration in the child",
            self.process
        )))
    }
}

#[pymethods]
impl PyPrefetchQueue {
    #[new]
    fn new(capacity: usize) -> PyResult<Self> {
        if capacity == 0 {
            return Err(PyValueError::new_err("a prefetch queue holds at least 1 item, but capacity is 0"));
        }
        Ok(Self { queue: ManuallyDrop::new(PrefetchQueue::new(capacity)), process: std::process::id() })
    }

    /// Waits until the producer may make an item; False where nobody wants any.
    fn reserve(&self, py: Python<'_>) -> PyResult<bool> {
        let queue = self.get()?;
        let mut answer = queue.reserve(Duration::ZERO);
        while answer == Reserve::TimedOut {
            answer = py.detach(|| queue.reserve(LONGEST_SLICE));
            py.check_signals()?;
        }
        Ok(answer == Reserve::Granted)
    }

    /// Whether more places would have spared the consumer a wait since the last call.
    fn has_lacked(&self) -> PyResult<bool> {
        Ok(self.get()?.has_lacked())
    }

    /// Whether the consumer waits for an item.
    #[getter]
    fn is_awaited(&self) -> PyResult<bool> {
        Ok(self.get()?.is_awaited())
    }

    /// Most items that are buffered at a time.
    #[getter]
    fn get_capacity(&self) -> PyResult<usize> {
        Ok(self.get()?.capacity())
    }

    #[setter]
    fn set_capacity(&self, capacity: usize) -> PyResult<()> {
        self.get()?.set_capacity(capacity);
        Ok(())
    }

    /// Says that the item is made, and handed over later: no hold waits for that.
    fn park(&self) -> PyResult<()> {
        self.get()?.park();
        Ok(())
    }

    /// Hands over the item that was reserved for.
    fn put(&self, item: Py<PyAny>) -> PyResult<()> {
        self.get()?.commit(Ok(item));
        Ok(())
    }

    /// Hands over the exception that ends the stream.
    fn fail(&self, error: Py<PyAny>) -> PyResult<()> {
        self.get()?.commit(Err(error));
        Ok(())
    }

    /// Says that there is no further item.
    fn finish(&self) -> PyResult<()> {
        self.get()?.finish();
        Ok(())
    }

    /// The next item; raises the producer's exception in its place, and StopIteration at the end.
    fn pop(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let queue = self.get()?;
        loop {
            match queue.try_pop() {
                Pop::Item(item) => return Ok(item),
                Pop::Error(error) => return Err(PyErr::from_value(error.into_bound(py))),
                Pop::Ended => return Err(PyStopIteration::new_err(())),
                Pop::TimedOut => {
                    if !py.detach(|| queue.wait_filled(LONGEST_SLICE)) {
                        py.check_signals()?;
                    }
                }
            }
        }
    }

    /// Lets the producer begin no further item before the hold is released.
    fn hold(slf: Bound<'_, Self>) -> PyResult<PyPrefetchHold> {
        slf.get().get()?;
        let hold = Hold::new(Owner(slf.unbind()));
        Ok(PyPrefetchHold { hold: GilCell::new(Some(ManuallyDrop::new(hold))) })
    }

    /// Waits until the producer is not busy with an item; False where it still is after `seconds`.
    fn wait_parked(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let queue = self.get()?;
        let limit = duration(seconds);
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            if py.detach(|| queue.wait_parked(left.min(LONGEST_SLICE))) {
                return Ok(true);
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Ends the stream; what is buffered stays for `snapshot`. Does nothing in a forked child.
    fn close(&self) {
        if let Ok(queue) = self.get() {
            queue.close();
        }
    }

    /// Puts items, and the exception after them, in front of what the producer makes.
    fn restore(&self, items: Vec<Py<PyAny>>, error: Option<Py<PyAny>>) -> PyResult<()> {
        self.get()?.restore(items, error);
        Ok(())
    }

    /// What is buffered: (items, the exception after them or None).
    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        let buffered = self.get()?.snapshot(|item| item.clone_ref(py), |error| error.clone_ref(py));
        Ok((buffered.items, buffered.error))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.get().map_or(true, PrefetchQueue::is_closed)
    }

    #[getter]
    fn held(&self) -> bool {
        self.get().is_ok_and(PrefetchQueue::is_held)
    }

    fn __len__(&self) -> usize {
        self.get().map_or(0, PrefetchQueue::len)
    }

    /// Waits for the queue's lock, and must not skip where it is held: what one of the collector's passes sees and the next
    /// one does not would be taken for garbage. Threads hold it for a few instructions, none of which needs the GIL; in a
    /// forked child, where a dead thread may hold it, nothing is looked at in any pass, and so nothing is collected.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(queue) = self.get() else { return Ok(()) };
        queue.try_for_each(|content| content.map_or_else(|error| visit.call(error), |item| visit.call(item)))
    }

    fn __clear__(&self) {
        if let Ok(queue) = self.get() {
            queue.close();
            drop(queue.drain());
        }
    }
}

/// A queue that a hold keeps alive.
struct Owner(Py<PyPrefetchQueue>);

impl Deref for Owner {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.0.get().queue
    }
}

/// What a hold is made of, taken away when it is released.
type Kept = Option<ManuallyDrop<Hold<Owner, Py<PyAny>, Py<PyAny>>>>;

/// A hold on a queue, by whoever has asked for it: the producer begins no item before the last one is released.
///
/// A forked child has no producer, and may have inherited a held lock: there a hold is forgotten.
#[pyclass(frozen, name = "PrefetchHold", module = "torchdata._native")]
pub struct PyPrefetchHold {
    hold: GilCell<Kept>,
}

impl PyPrefetchHold {
    fn queue(&self, py: Python<'_>) -> Option<Py<PyPrefetchQueue>> {
        self.hold.with(py, |hold| hold.as_ref().map(|hold| hold.owner().0.clone_ref(py)))
    }
}

#[pymethods]
impl PyPrefetchHold {
    /// Waits until the producer stands still; False where it is still busy with an item after `seconds`.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        self.queue(py).map_or(Ok(true), |queue| queue.get().wait_parked(py, seconds))
    }

    /// Lets go. May be called more than once.
    fn release(&self, py: Python<'_>) {
        let hold = self.hold.with(py, Option::take);
        if let Some(hold) = hold
            && hold.owner().0.get().get().is_ok()
        {
            drop(ManuallyDrop::into_inner(hold));
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: the collector holds the GIL, of which it has no token to give.
        let py = unsafe { Python::assume_attached() };
        self.hold.with(py, |hold| visit.call(hold.as_ref().map(|hold| &hold.owner().0)))
    }

    fn __clear__(&self, py: Python<'_>) {
        self.release(py);
    }
}

impl Drop for PyPrefetchHold {
    fn drop(&mut self) {
        Python::attach(|py| self.release(py));
    }
}
