//! Returns the items of a loader to one thread at a time, and counts the items.
//!
//! No Python code runs between counting and returning an item, so signal handlers always find the correct count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use pyo3::exceptions::{PyException, PyRuntimeError, PyStopIteration, PyTypeError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use torchdata_core::process::watching::{CUT, HELD, Pulse, UNWATCHED};

use crate::gil_cell::{GilCell, GilNumber};
use crate::pipes::iterators::iternext_of;
use crate::pipes::turn::Turn;
use crate::seconds::duration;
use crate::watching;

const NONE: i64 = -1;

struct EpochSource {
    iterator: Py<PyAny>,
    next: ffi::iternextfunc,
}

enum DeliveryStep<'py> {
    Item(Bound<'py, PyAny>),
    End,
    Error(PyErr),
    Left,
}

#[pyclass(frozen, module = "torchdata._native")]
pub struct Delivery {
    source: GilCell<Option<EpochSource>>,
    valid: AtomicI64,
    version: GilNumber,
    turn: Py<Turn>,
    begun: AtomicBool,
    /// The number of items that the user has received in this run of the loader.
    received: Arc<GilNumber>,
    /// Counts calls, so that a watching thread can detect a call that does not return.
    pulse: Arc<Pulse>,
    /// The key under which a stalled call is reported, and the maximum time for one item.
    watched: GilCell<Option<(u64, Duration)>>,
}

impl Delivery {
    pub fn received(&self) -> Arc<GilNumber> {
        Arc::clone(&self.received)
    }

    #[cold]
    fn resume_watching(&self, py: Python<'_>) {
        match self.watched.with(py, |watched| *watched) {
            Some((key, patience)) => watching::watch(py).begin(&self.pulse, key, patience),
            None => self.pulse.set_sign(UNWATCHED, false),
        }
    }

    fn step<'py>(&self, py: Python<'py>) -> DeliveryStep<'py> {
        // The clone keeps the iterator alive, even if another thread replaces the source during the call.
        let source = |source: &EpochSource| (source.iterator.bind(py).clone(), source.next);
        let Some((iterator, next)) = self.source.with(py, |current| current.as_ref().map(source)) else {
            return DeliveryStep::End;
        };
        let version = self.version.load();
        self.pulse.enter();
        // SAFETY: `next` is the iternext function of the iterator's type. NULL means the end of the items or an
        // exception.
        let item = unsafe { Bound::from_owned_ptr_or_opt(py, next(iterator.as_ptr())) };
        self.pulse.leave();
        if self.version.load() != version {
            return self.left(py);
        }
        match item {
            Some(item) => DeliveryStep::Item(item),
            None => PyErr::take(py).map_or(DeliveryStep::End, |error| DeliveryStep::Error(self.note(py, error))),
        }
    }

    /// Handles a call of `next` during which the epoch has ended. The call's result is dropped, except for an exception
    /// such as KeyboardInterrupt.
    #[cold]
    fn left<'py>(&self, py: Python<'py>) -> DeliveryStep<'py> {
        match PyErr::take(py) {
            Some(error) if !error.is_instance_of::<PyException>(py) => DeliveryStep::Error(error),
            _ => DeliveryStep::Left,
        }
    }

    /// Records that an exception such as KeyboardInterrupt has interrupted a pipe, which may have lost items.
    #[cold]
    fn note(&self, py: Python<'_>, error: PyErr) -> PyErr {
        if !error.is_instance_of::<PyException>(py) {
            self.pulse.set_sign(CUT, true);
        }
        error
    }
}

#[pymethods]
impl Delivery {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Self {
            source: GilCell::new(None),
            valid: AtomicI64::new(NONE),
            version: GilNumber::new(0),
            turn: Py::new(py, Turn::default())?,
            begun: AtomicBool::new(true),
            received: Arc::default(),
            pulse: Arc::default(),
            watched: GilCell::new(None),
        })
    }

    #[getter]
    fn turn(&self, py: Python<'_>) -> Py<Turn> {
        self.turn.clone_ref(py)
    }

    #[getter]
    fn source<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.source
            .with(py, |source| source.as_ref().map(|source| source.iterator.clone_ref(py)))
            .map(|one| one.into_bound(py))
    }

    #[setter]
    fn set_source(&self, py: Python<'_>, iterator: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let new = match iterator {
            None => None,
            Some(iterator) => {
                let next = iternext_of(&iterator).ok_or_else(|| {
                    PyTypeError::new_err(format!("{iterator} of type {} is not an iterator", iterator.get_type()))
                })?;
                Some(EpochSource { iterator: iterator.unbind(), next })
            }
        };
        let old = self.source.with(py, |source| std::mem::replace(source, new));
        self.version.increment();
        drop(old); // dropped after the access to `source`, because dropping may run arbitrary code
        Ok(())
    }

    #[getter]
    fn valid(&self) -> Option<i64> {
        Some(self.valid.load(Relaxed)).filter(|&valid| valid != NONE)
    }

    #[setter]
    fn set_valid(&self, number: Option<i64>) {
        self.valid.store(number.unwrap_or(NONE), Relaxed);
        self.version.increment();
    }

    #[getter]
    fn begun(&self) -> bool {
        self.begun.load(Relaxed)
    }

    #[setter]
    fn set_begun(&self, begun: bool) {
        self.begun.store(begun, Relaxed);
    }

    #[getter]
    fn slow(&self) -> bool {
        self.pulse.signs() & HELD != 0
    }

    #[setter]
    fn set_slow(&self, slow: bool) {
        self.pulse.set_sign(HELD, slow);
    }

    #[getter(received)]
    fn received_so_far(&self) -> u64 {
        self.received.load()
    }

    #[setter]
    fn set_received(&self, count: u64) {
        self.received.store(count);
    }

    #[getter]
    fn busy(&self) -> bool {
        self.pulse.is_inside()
    }

    /// Whether an exception such as KeyboardInterrupt interrupted the last item, so that pipes may have lost items.
    #[getter]
    fn cut(&self) -> bool {
        self.pulse.signs() & CUT != 0
    }

    #[setter]
    fn set_cut(&self, cut: bool) {
        self.pulse.set_sign(CUT, cut);
    }

    /// Reports an item that takes longer than `seconds`. The report is repeated whenever the elapsed time has doubled.
    fn watch(&self, py: Python<'_>, key: u64, seconds: f64) {
        let how = (key, duration(seconds));
        self.watched.with(py, |watched| *watched = Some(how));
        watching::watch(py).begin(&self.pulse, how.0, how.1);
    }

    fn stop_watching(&self, py: Python<'_>) {
        self.watched.with(py, Option::take);
        watching::watch(py).end(&self.pulse);
    }

    /// Returns the next item without counting the item, and without checking whether the iterator is still valid.
    #[pyo3(name = "step")]
    fn step_from_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.step(py) {
            DeliveryStep::Item(item) => Ok(item),
            DeliveryStep::End => Err(PyStopIteration::new_err(())),
            DeliveryStep::Error(error) => Err(error),
            DeliveryStep::Left => Err(PyRuntimeError::new_err("the epoch ended while one of its items was computed")),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: the garbage collector holds the GIL during this call, but provides no interpreter token.
        let py = unsafe { Python::assume_attached() };
        visit.call(&self.turn)?;
        self.source.with(py, |source| visit.call(source.as_ref().map(|source| &source.iterator)))
    }

    fn __clear__(&self, py: Python<'_>) {
        let old = self.source.with(py, Option::take);
        drop(old);
    }
}

#[pyclass(subclass, frozen, module = "torchdata._native")]
pub struct DeliveryIterator {
    delivery: Py<Delivery>,
    number: i64,
}

#[pymethods]
impl DeliveryIterator {
    #[new]
    #[pyo3(signature = (delivery, number, *_arguments))]
    fn new(delivery: Bound<'_, Delivery>, number: i64, _arguments: Bound<'_, PyAny>) -> Self {
        Self { delivery: delivery.unbind(), number }
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = slf.py();
        let delivery = slf.get().delivery.get();
        let _turn = delivery.turn.get().take(py)?;
        if delivery.valid.load(Relaxed) != slf.get().number {
            slf.call_method0("_refuse")?;
        }
        delivery.begun.store(true, Relaxed);
        let signs = delivery.pulse.signs();
        if signs != 0 {
            if signs & UNWATCHED != 0 {
                delivery.resume_watching(py);
            }
            if signs & CUT != 0 {
                slf.call_method0("_resume_cut")?;
            }
            if signs & HELD != 0 {
                return next_slowly(slf, delivery);
            }
        }
        match delivery.step(py) {
            DeliveryStep::Item(item) => {
                delivery.received.increment();
                Ok(Some(item))
            }
            other => ended(slf, other),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.delivery)
    }
}

/// Returns the next item. If the loader is paused, or a thread is saving the loader's state, this function waits first.
#[cold]
fn next_slowly<'py>(slf: &Bound<'py, DeliveryIterator>, delivery: &Delivery) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = slf.py();
    // The watched call begins before this wait, so that the watching thread also reports a long wait.
    delivery.pulse.enter();
    let stepped = match slf.call_method0("_wait_until_released") {
        Ok(_) => delivery.step(py),
        Err(error) => {
            delivery.pulse.leave();
            return Err(delivery.note(py, error));
        }
    };
    let DeliveryStep::Item(item) = stepped else {
        delivery.pulse.leave();
        return ended(slf, stepped);
    };
    let counted = slf.call_method0("_count_to_limit");
    delivery.pulse.leave();
    counted.map_err(|error| delivery.note(py, error))?;
    delivery.received.increment();
    Ok(Some(item))
}

#[cold]
fn ended<'py>(slf: &Bound<'py, DeliveryIterator>, step: DeliveryStep<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = slf.py();
    let error = match step {
        DeliveryStep::Item(item) => return Ok(Some(item)),
        DeliveryStep::End => PyStopIteration::new_err(()),
        DeliveryStep::Error(error) => error,
        DeliveryStep::Left => {
            slf.call_method0("_refuse")?;
            return Ok(None);
        }
    };
    if error.is_instance_of::<PyStopIteration>(py) {
        slf.call_method1("_on_end", (error.value(py),))?;
        return Ok(None);
    }
    if error.is_instance_of::<PyException>(py) {
        slf.call_method1("_on_error", (error.value(py),))?;
    }
    Err(error)
}
