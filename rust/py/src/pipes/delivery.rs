//! The delivery of a loader to its user: one item after the other, counted.
//!
//! Runs in the threads that read the loader, one after the other. A [`Delivery`] belongs to a loader and knows the one
//! valid iterator, what it reads from, and how many items of the epoch the user was given. Another thread may begin an
//! epoch, or end the loader, while one reads: what that one is given then is of no epoch any more, and it is told so.
//! The count moves at the very moment at which an item leaves, with no Python code in between: so a signal handler
//! finds it right, whenever it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pyo3::exceptions::{PyException, PyRuntimeError, PyStopIteration};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use torchdata_core::process::watching::{CUT, HELD, Pulse, UNWATCHED};

use crate::gil_cell::GilCell;
use crate::pipes::turn::Turn;
use crate::seconds::duration;
use crate::watching;

/// No iterator has this number.
const NONE: i64 = -1;

/// The source of an epoch: the iterator, and the slot of its type that gives the next item.
struct Source {
    iterator: Py<PyAny>,
    next: ffi::iternextfunc,
}

/// The outcome of asking for an item.
enum Step<'py> {
    Item(Bound<'py, PyAny>),
    End,
    Error(PyErr),
    /// The epoch was left meanwhile, by another thread or a signal handler. An item that came is nobody's.
    Left,
}

/// How far a loader's user has come. Numbers are atomics only to be shared without locks; the GIL orders every access.
#[pyclass(frozen, module = "torchdata._native")]
pub struct Delivery {
    source: GilCell<Option<Source>>,
    valid: AtomicI64,
    /// Changes with each of the two above.
    version: AtomicU64,
    turn: Py<Turn>,
    /// Whether an item was asked for since the epoch began.
    begun: AtomicBool,
    /// Items of the epoch that the user was given in this run.
    given: Arc<AtomicU64>,
    /// Calls into the source, and whether the next one is to look twice: because each step goes through Python, as the
    /// loader is paused or limited, because nobody watches any more, or because the last one was cut off.
    pulse: Arc<Pulse>,
    /// How it is watched: the number that it is known by, and for how long an item may take.
    watched: GilCell<Option<(u64, Duration)>>,
}

impl Delivery {
    /// The count of items that were given, which goes on changing.
    pub fn given(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.given)
    }

    #[inline]
    fn count(&self) {
        self.given.store(self.given.load(Relaxed) + 1, Relaxed);
    }

    /// There was a fork.
    #[cold]
    fn go_on_watching(&self, py: Python<'_>) {
        match self.watched.with(py, |watched| *watched) {
            Some((key, patience)) => watching::watch(py).begin(&self.pulse, key, patience),
            None => self.pulse.set_sign(UNWATCHED, false),
        }
    }

    #[inline]
    fn step<'py>(&self, py: Python<'py>) -> Step<'py> {
        let Some((iterator, next)) =
            self.source.with(py, |source| source.as_ref().map(|source| (source.iterator.as_ptr(), source.next)))
        else {
            return Step::End;
        };
        // SAFETY: a live iterator, which this reference keeps alive though another takes its place meanwhile.
        let iterator = unsafe { Bound::from_borrowed_ptr(py, iterator) };
        let version = self.version.load(Relaxed);
        self.pulse.enter();
        // SAFETY: the slot of the iterator's type; NULL is the end or an exception.
        let item = unsafe { Bound::from_owned_ptr_or_opt(py, next(iterator.as_ptr())) };
        self.pulse.leave();
        if self.version.load(Relaxed) != version {
            return self.left(py);
        }
        match item {
            Some(item) => Step::Item(item),
            None => PyErr::take(py).map_or(Step::End, |error| Step::Error(self.note(py, error))),
        }
    }

    /// Drops an outcome, which is of no epoch any more; exceptions that cut off all that Python does are kept.
    #[cold]
    fn left<'py>(&self, py: Python<'py>) -> Step<'py> {
        match PyErr::take(py) {
            Some(error) if !error.is_instance_of::<PyException>(py) => Step::Error(error),
            _ => Step::Left,
        }
    }

    fn change(&self) {
        self.version.store(self.version.load(Relaxed) + 1, Relaxed);
    }

    /// Notes an error that cuts the making of an item off wherever that was, such as Ctrl-C.
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
            version: AtomicU64::new(0),
            turn: Py::new(py, Turn::default())?,
            begun: AtomicBool::new(true),
            given: Arc::default(),
            pulse: Arc::default(),
            watched: GilCell::new(None),
        })
    }

    /// The turn of threads that read.
    #[getter]
    fn turn(&self, py: Python<'_>) -> Py<Turn> {
        self.turn.clone_ref(py)
    }

    /// The source that is read, or None.
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
                let class = iterator.get_type();
                // SAFETY: the slot of a live type: a function of the iternext kind, or NULL if the type is no
                // iterator.
                let next: Option<ffi::iternextfunc> =
                    unsafe { std::mem::transmute(ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_iternext)) };
                let next = next.ok_or_else(|| {
                    pyo3::exceptions::PyTypeError::new_err(format!("{iterator} of type {class} is no iterator"))
                })?;
                Some(Source { iterator: iterator.unbind(), next })
            }
        };
        let old = self.source.with(py, |source| std::mem::replace(source, new));
        self.change();
        drop(old); // outside: it may run anything
        Ok(())
    }

    /// The number of the valid iterator, or None.
    #[getter]
    fn valid(&self) -> Option<i64> {
        Some(self.valid.load(Relaxed)).filter(|&valid| valid != NONE)
    }

    #[setter]
    fn set_valid(&self, number: Option<i64>) {
        self.valid.store(number.unwrap_or(NONE), Relaxed);
        self.change();
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

    #[getter(given)]
    fn given_so_far(&self) -> u64 {
        self.given.load(Relaxed)
    }

    #[setter]
    fn set_given(&self, count: u64) {
        self.given.store(count, Relaxed);
    }

    /// Whether somebody waits for an item: in another thread, or below in this one.
    #[getter]
    fn busy(&self) -> bool {
        self.pulse.is_inside()
    }

    /// Whether the item that was asked for last was cut off, by Ctrl-C for one: what pipes hold now may be without it.
    #[getter]
    fn cut(&self) -> bool {
        self.pulse.signs() & CUT != 0
    }

    #[setter]
    fn set_cut(&self, cut: bool) {
        self.pulse.set_sign(CUT, cut);
    }

    /// Has `watch_with`'s function called when an item takes longer than so many seconds, and each time that it takes
    /// twice as long; it is told the number `key`.
    fn watch(&self, py: Python<'_>, key: u64, seconds: f64) {
        let how = (key, duration(seconds));
        self.watched.with(py, |watched| *watched = Some(how));
        watching::watch(py).begin(&self.pulse, how.0, how.1);
    }

    /// Ends the watch over calls.
    fn watch_no_more(&self, py: Python<'_>) {
        self.watched.with(py, Option::take);
        watching::watch(py).end(&self.pulse);
    }

    /// The next item of the epoch, whichever iterator is valid; not counted as given. Raises StopIteration at its end.
    #[pyo3(name = "step")]
    fn step_from_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.step(py) {
            Step::Item(item) => Ok(item),
            Step::End => Err(PyStopIteration::new_err(())),
            Step::Error(error) => Err(error),
            Step::Left => Err(PyRuntimeError::new_err("the epoch was left while an item of it was made")),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: the collector holds the GIL, of which it has no token to give.
        let py = unsafe { Python::assume_attached() };
        visit.call(&self.turn)?;
        self.source.with(py, |source| visit.call(source.as_ref().map(|source| &source.iterator)))
    }

    fn __clear__(&self, py: Python<'_>) {
        let old = self.source.with(py, Option::take);
        drop(old);
    }
}

/// The base of loaders' iterators. Subclasses say what is done if the next item is not just handed on.
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
                delivery.go_on_watching(py);
            }
            if signs & CUT != 0 {
                slf.call_method0("_go_on_cut")?;
            }
            if signs & HELD != 0 {
                return next_slowly(slf, delivery);
            }
        }
        match delivery.step(py) {
            Step::Item(item) => {
                delivery.count();
                Ok(Some(item))
            }
            other => ended(slf, other),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.delivery)
    }
}

/// The next item of a loader that is paused, limited, or held while its state is taken.
#[cold]
fn next_slowly<'py>(slf: &Bound<'py, DeliveryIterator>, delivery: &Delivery) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = slf.py();
    // Busy until the item leaves: until then nobody has it.
    delivery.pulse.enter();
    let stepped = match slf.call_method0("_wait_until_released") {
        Ok(_) => delivery.step(py),
        Err(error) => {
            delivery.pulse.leave();
            return Err(delivery.note(py, error));
        }
    };
    let Step::Item(item) = stepped else {
        delivery.pulse.leave();
        return ended(slf, stepped);
    };
    let counted = slf.call_method0("_count_to_limit");
    delivery.pulse.leave();
    counted.map_err(|error| delivery.note(py, error))?; // the item may have been made already
    delivery.count();
    Ok(Some(item))
}

#[cold]
fn ended<'py>(slf: &Bound<'py, DeliveryIterator>, step: Step<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = slf.py();
    let error = match step {
        Step::Item(item) => return Ok(Some(item)),
        Step::End => PyStopIteration::new_err(()),
        Step::Error(error) => error,
        Step::Left => {
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
