//! Implements the iterator (guard) that `iter(pipe)` returns. The iterator counts items, and ensures that only the
//! newest iterator of a pipe is valid.
//!
//! Every item of every pipe passes through a guard. The guard's type consists of C slots, because PyO3's wrapper around
//! `__next__` would take longer than the guard's own work.
//!
//! If a Rust panic left a C slot, the process would abort. `caught` therefore catches the panics of all code in the
//! slots, except memory accesses and calls of C functions, which cannot panic.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use pyo3::exceptions::{PyBaseException, PyException, PyRuntimeError, PyStopIteration, PyTypeError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyType};

use torchdata_core::stats::nanoseconds;

use crate::finalized::new_type;
use crate::panics::caught;
use crate::pipes::clocking;
use crate::pipes::iterators::{iternext_of, stopped_by};
use crate::pipes::metering::Metering;
use crate::pipes::sequence::SequenceIterator;
use crate::pipes::token::IterationToken;

/// The garbage collector stores this value in `Guard::id` when it clears a guard. No iterator has this number.
const CLEARED: u64 = u64::MAX;

#[repr(C)]
struct Guard {
    ob_base: ffi::PyObject,
    // Fields that are used for each item come first, to share one cache line.
    /// The number of the iterator. The iterator is valid while the token of its pipe contains this number.
    id: u64,
    token: *const IterationToken,
    /// The function that returns the next item from `argument`. After the end of the data, `next` is the function
    /// `no_more`.
    next: ffi::iternextfunc,
    argument: *mut ffi::PyObject,
    /// The item counter of the pipe in shared memory, or null. The counter is valid as long as the token exists.
    counter: *const AtomicU64,
    /// The guard owns references to the iterator, the pipe and the token, until the garbage collector clears the guard.
    iterator: *mut ffi::PyObject,
    pipe: *mut ffi::PyObject,
    token_object: *mut ffi::PyObject,
    inner: ffi::iternextfunc,
    /// A word in shared memory that equals `mark` while the pipe of this iterator is running, or null if pipes are not
    /// measured.
    current: *const AtomicU32,
    mark: u32,
    nested: bool,
    metering: Metering,
    /// Whether the iterator is the built-in `map`. A StopIteration of the mapped function must not end the data (PEP
    /// 479).
    sealed: bool,
    ranging: *mut Ranging,
}

/// The additional state of a guard that reports its calls as ranges to torch's profiler.
struct Ranging {
    next: ffi::iternextfunc,
    argument: *mut ffi::PyObject,
    profiler: Py<PyDict>,
    runs: Py<PyString>,
    begin: Py<PyAny>,
}

/// FORK: the type is created while the extension is imported, so no thread ever waits for `TYPE`.
pub fn guard_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    TYPE.get_or_try_init(py, || make_type(py).map(Bound::unbind)).map(|class| class.bind(py))
}

fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    let member = |name: &'static std::ffi::CStr, offset: usize| ffi::PyMemberDef {
        name: name.as_ptr(),
        type_code: ffi::Py_T_OBJECT_EX,
        offset: offset as ffi::Py_ssize_t,
        flags: ffi::Py_READONLY,
        doc: std::ptr::null(),
    };
    // The interpreter keeps pointers to the table of members, so the table is never freed.
    let members = Box::leak(Box::new([
        member(c"pipe", offset_of!(Guard, pipe)),
        member(c"iterator", offset_of!(Guard, iterator)),
        // SAFETY: a zeroed entry marks the end of the table.
        unsafe { std::mem::zeroed::<ffi::PyMemberDef>() },
    ]));
    let slots = [
        (ffi::Py_tp_doc, c"The iterator that `iter(pipe)` returns.".as_ptr().cast_mut().cast()),
        (ffi::Py_tp_iter, ffi::PyObject_SelfIter as *mut c_void),
        (ffi::Py_tp_iternext, next_item as *mut c_void),
        (ffi::Py_tp_getattro, get_attribute as *mut c_void),
        (ffi::Py_tp_traverse, traverse as *mut c_void),
        (ffi::Py_tp_clear, clear as *mut c_void),
        (ffi::Py_tp_dealloc, deallocate as *mut c_void),
        (ffi::Py_tp_members, members.as_mut_ptr().cast()),
    ];
    let flags = ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION;
    // SAFETY: each function in `slots` has the signature that the interpreter expects.
    unsafe { new_type(py, c"torchdata._native.IteratorGuard", size_of::<Guard>(), flags, &slots) }
}

/// Creates a guard for `iterator`, which the `__iter__` of `pipe` has returned. `iterator_id` is the number that
/// `token` has given to `iterator`.
#[pyfunction]
#[pyo3(signature = (pipe, iterator, token, iterator_id, ranges = None))]
pub fn guard_iterator<'py>(
    pipe: Bound<'py, PyAny>,
    iterator: Bound<'py, PyAny>,
    token: Bound<'py, IterationToken>,
    iterator_id: u64,
    ranges: Option<(Py<PyDict>, Py<PyAny>)>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = pipe.py();
    let class = iterator.get_type();
    let Some(next) = iternext_of(&iterator) else {
        return Err(PyTypeError::new_err(format!(
            "__iter__ of {} must return an iterator, but returned an object of type {}",
            describe(&pipe),
            class.name()?
        )));
    };
    let sealed = class.is(PyModule::import(py, "builtins")?.getattr("map")?);
    // SAFETY: all fields after the header of the new guard are zero, and are set before other code can access the
    // guard. The garbage collector skips fields that are NULL. The new guard takes ownership of the references to the
    // iterator, the pipe and the token.
    unsafe {
        let object = ffi::PyType_GenericAlloc(guard_type(py)?.as_type_ptr(), 0);
        let object = Bound::from_owned_ptr_or_err(py, object)?;
        let guard = object.as_ptr().cast::<Guard>();
        (&raw mut (*guard).token).write(token.get());
        (&raw mut (*guard).counter).write(token.get().counter());
        let (call, argument) = match token.get().slot() {
            Some(slot) if slot.pipe.page.is_full() => {
                let (current, mark) = slot.pipe.running();
                (&raw mut (*guard).current).write(current);
                (&raw mut (*guard).mark).write(mark);
                (next_timed as ffi::iternextfunc, object.as_ptr())
            }
            Some(slot) if slot.root && slot.main => (next_metered as ffi::iternextfunc, object.as_ptr()),
            _ => (next, iterator.as_ptr()),
        };
        let ranging = ranges.map(|(profiler, begin)| {
            let runs = intern!(py, "_is_profiler_enabled").clone().unbind();
            Box::into_raw(Box::new(Ranging { next: call, argument, profiler, runs, begin }))
        });
        let (call, argument) = match ranging {
            Some(_) => (next_ranged as ffi::iternextfunc, object.as_ptr()),
            None => (call, argument),
        };
        (&raw mut (*guard).ranging).write(ranging.unwrap_or(std::ptr::null_mut()));
        (&raw mut (*guard).next).write(call);
        (&raw mut (*guard).argument).write(argument);
        (&raw mut (*guard).inner).write(next);
        (&raw mut (*guard).metering).write(Metering::new());
        (&raw mut (*guard).id).write(iterator_id);
        (&raw mut (*guard).sealed).write(sealed);
        (&raw mut (*guard).token_object).write(token.into_ptr());
        (&raw mut (*guard).iterator).write(iterator.into_ptr());
        (&raw mut (*guard).pipe).write(pipe.into_ptr());
        Ok(object)
    }
}

/// Some iterators start again if they are called after their end, so `no_more` replaces the guard's function `next` at
/// the end of the data.
unsafe extern "C" fn no_more(_: *mut ffi::PyObject) -> *mut ffi::PyObject {
    std::ptr::null_mut()
}

unsafe extern "C" fn next_item(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the caller keeps the guard alive. `ask` and `no_item` also accept a guard after `clear`.
    unsafe {
        let guard = object.cast::<Guard>();
        let item = ask(guard);
        if item.is_null() { no_item(guard) } else { item }
    }
}

/// Requests the next item from the iterator. Returns NULL at the end, after an exception, or if the guard is invalid.
///
/// # Safety
/// The guard exists. A guard owns its token, pipe and iterator until `clear` runs.
#[inline(always)]
unsafe fn ask(guard: *mut Guard) -> *mut ffi::PyObject {
    // SAFETY: the caller keeps `guard` alive. A guard owns its token, pipe and iterator until `clear` runs.
    unsafe {
        if (*guard).id == CLEARED || !(*(*guard).token).is_current((*guard).id) {
            return std::ptr::null_mut();
        }
        let item = ((*guard).next)((*guard).argument);
        // The item is not counted if another thread has started a new iteration of the pipe during the call of `next`.
        if !item.is_null() && (*guard).id != CLEARED && (*(*guard).token).is_current((*guard).id) {
            count(guard, 1);
        }
        item
    }
}

#[inline(always)]
unsafe fn count(guard: *mut Guard, items: u64) {
    // SAFETY: the caller keeps `guard` alive. A guard owns its token, pipe and iterator until `clear` runs.
    unsafe {
        (*(*guard).token).count(items);
        if let Some(counter) = (*guard).counter.as_ref() {
            counter.store(counter.load(Relaxed) + items, Relaxed);
        }
    }
}

/// Skips up to `most` items of the guard `iterator`, if the wrapped iterator supports skipping. Skipped items are
/// counted as yielded.
///
/// # Safety
/// `iterator` is an instance of `IteratorGuard`.
pub unsafe fn pass_over(iterator: &Bound<'_, PyAny>, most: usize) {
    let py = iterator.py();
    // SAFETY: the caller passes an instance of `IteratorGuard`. This function returns early for a cleared guard, and a
    // guard owns its token and iterator until `clear` runs.
    unsafe {
        let guard = iterator.as_ptr().cast::<Guard>();
        if (*guard).id == CLEARED || !(*(*guard).token).is_current((*guard).id) {
            return;
        }
        if let Ok(sequence) = Bound::from_borrowed_ptr(py, (*guard).iterator).cast_exact::<SequenceIterator>() {
            count(guard, sequence.get().pass_over(py, most) as u64);
        }
    }
}

unsafe extern "C" fn next_metered(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: `next_item` passes its own guard to this function, and that guard is valid and not cleared.
    unsafe {
        let guard = object.cast::<Guard>();
        if (*guard).metering.is_due() { metered(guard) } else { ((*guard).inner)((*guard).iterator) }
    }
}

#[inline(never)]
unsafe fn metered(guard: *mut Guard) -> *mut ffi::PyObject {
    // SAFETY: the caller keeps `guard` alive. A guard owns its token, pipe and iterator until `clear` runs. The
    // statistics record is read after the call of `inner`, because this call may replace the record.
    unsafe {
        let first = (*guard).metering.measured == 0;
        begin_first(guard, first);
        let began = nanoseconds();
        let item = ((*guard).inner)((*guard).iterator);
        if (*guard).id == CLEARED {
            return item;
        }
        let inside = (*guard).metering.note(began);
        end_first(guard, first, !item.is_null());
        if !first && let Some(slot) = (*(*guard).token).slot() {
            slot.pipe.page.inside(inside);
        }
        item
    }
}

unsafe extern "C" fn next_timed(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: `next_item` passes its own guard to this function, and that guard is valid and not cleared. The token
    // keeps the memory that `current` points to allocated until the guard is cleared.
    unsafe {
        let guard = object.cast::<Guard>();
        let before = (*(*guard).current).load(Relaxed);
        (*(*guard).current).store((*guard).mark, Relaxed);
        let item = if (*guard).nested && !(*guard).metering.is_due() && !clocking::is_measuring() {
            ((*guard).inner)((*guard).iterator)
        } else {
            clocked(guard)
        };
        if (*guard).id != CLEARED {
            (*(*guard).current).store(before, Relaxed);
        }
        item
    }
}

unsafe fn clocked(guard: *mut Guard) -> *mut ffi::PyObject {
    // SAFETY: the caller keeps `guard` alive. A guard owns its token, pipe and iterator until `clear` runs.
    unsafe {
        let first =
            (*guard).metering.measured == 0 && (*(*guard).token).slot().is_some_and(|slot| slot.root && slot.main);
        begin_first(guard, first);
        let (item, nested, timed) = clocking::timed(|| ((*guard).inner)((*guard).iterator));
        (*guard).metering.measured = 1;
        (*guard).nested = nested;
        (*guard).metering.countdown = clocking::LOOK_AGAIN;
        if (first || timed.is_some()) && (*guard).id != CLEARED {
            end_first(guard, first, !item.is_null());
            note(guard, &timed, first);
        }
        item
    }
}

unsafe fn note(guard: *mut Guard, timed: &Option<clocking::Timed>, first: bool) {
    // SAFETY: the caller passes a guard that is not cleared.
    let token = unsafe { &*(*guard).token };
    let (Some(slot), Some(timed)) = (token.slot(), timed) else { return };
    slot.sample(timed);
    if let (true, Some((took, weight))) = (slot.root && slot.main && !first, timed.whole) {
        slot.pipe.page.inside(took.saturating_mul(weight).min(timed.passed.max(took)));
    }
}

unsafe extern "C" fn next_ranged(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the interpreter keeps the guard alive, and the guard owns the boxed `Ranging`. PyDict_GetItemWithError
    // cannot fail, because all keys of a module's dictionary are strings.
    unsafe {
        let guard = object.cast::<Guard>();
        let ranging = &*(*guard).ranging;
        if ffi::PyDict_GetItemWithError(ranging.profiler.as_ptr(), ranging.runs.as_ptr()) != ffi::Py_True() {
            return (ranging.next)(ranging.argument);
        }
        let pipe = (*guard).pipe;
        let end = caught(None, || Python::attach_unchecked(|py| begin_range(py, &ranging.begin, pipe)));
        let item = (ranging.next)(ranging.argument);
        if let Some(end) = end {
            caught((), || Python::attach_unchecked(|py| end_range(py, end)));
        }
        item
    }
}

/// Begins a range of torch's profiler for a call of `pipe`. An error of the profiler is only printed, so that loading
/// continues.
///
/// # Safety
/// `pipe` points to an existing object.
unsafe fn begin_range(py: Python<'_>, begin: &Py<PyAny>, pipe: *mut ffi::PyObject) -> Option<Py<PyAny>> {
    // SAFETY: the caller guarantees that `pipe` points to an existing object.
    let pipe = unsafe { Bound::from_borrowed_ptr(py, pipe) };
    begin.call1(py, (pipe,)).map_err(|error| error.write_unraisable(py, Some(begin.bind(py)))).ok()
}

/// Ends a range of torch's profiler. An exception that the pipe has raised stays the current exception.
fn end_range(py: Python<'_>, end: Py<PyAny>) {
    let passing = PyErr::take(py);
    if let Err(error) = end.call1(py, (py.None(), py.None(), py.None())) {
        error.write_unraisable(py, Some(end.bind(py)));
    }
    if let Some(error) = passing {
        error.restore(py);
    }
}

unsafe fn begin_first(guard: *mut Guard, first: bool) {
    // SAFETY: the caller keeps `guard` alive. A guard owns its token, pipe and iterator until `clear` runs.
    if first && let Some(slot) = unsafe { (*(*guard).token).slot() } {
        slot.pipe.page.begin_first();
    }
}

unsafe fn end_first(guard: *mut Guard, first: bool, has_item: bool) {
    // SAFETY: the caller keeps `guard` alive. A guard owns its token, pipe and iterator until `clear` runs.
    if first && let Some(slot) = unsafe { (*(*guard).token).slot() } {
        slot.pipe.page.end_first();
        if has_item {
            slot.pipe.page.begin_span(None);
        }
    }
}

#[cold]
unsafe fn no_item(guard: *mut Guard) -> *mut ffi::PyObject {
    // SAFETY: the caller keeps `guard` alive. A guard owns its token, pipe and iterator until `clear` runs.
    unsafe {
        while continues(guard) {
            let item = ask(guard);
            if !item.is_null() {
                return item;
            }
        }
    }
    std::ptr::null_mut()
}

unsafe fn continues(guard: *mut Guard) -> bool {
    let ended = |py: Python<'_>| {
        // SAFETY: the interpreter keeps the guard alive during this call.
        let (id, sealed) = unsafe { ((*guard).id, (*guard).sealed) };
        if id == CLEARED || is_panic(py) {
            return false;
        }
        // SAFETY: the guard is not cleared, so it owns its token, pipe and iterator. The guard outlives this closure.
        let (token, pipe, iterator) = unsafe {
            let pipe = Bound::from_borrowed_ptr(py, (*guard).pipe);
            (&*(*guard).token, pipe, Bound::from_borrowed_ptr(py, (*guard).iterator))
        };
        match outcome(token, &pipe, &iterator, id, sealed) {
            Ok(Outcome::Continues) => return true,
            Ok(Outcome::Paused) => {}
            // SAFETY: the interpreter keeps the guard alive during this call.
            Ok(Outcome::Ended) => unsafe { (*guard).next = no_more },
            Err(error) => error.restore(py),
        }
        false
    };
    // SAFETY: the interpreter holds the GIL while it calls a slot.
    caught(false, || unsafe { Python::attach_unchecked(ended) })
}

/// A Rust panic that is the current exception must not be converted to a Rust error, because the conversion would panic
/// again.
fn is_panic(py: Python<'_>) -> bool {
    // SAFETY: `PyErr_ExceptionMatches` requires a current exception, and is called only if `PyErr_Occurred` returns an
    // exception. Both functions change nothing.
    unsafe {
        !ffi::PyErr_Occurred().is_null() && ffi::PyErr_ExceptionMatches(py.get_type::<PanicException>().as_ptr()) != 0
    }
}

enum Outcome {
    Ended,
    /// The iterator raised a subclass of StopIteration, such as `PauseIteration`.
    Paused,
    Continues,
}

fn outcome(
    token: &IterationToken,
    pipe: &Bound<'_, PyAny>,
    iterator: &Bound<'_, PyAny>,
    id: u64,
    sealed: bool,
) -> PyResult<Outcome> {
    let py = pipe.py();
    let Some(error) = PyErr::take(py) else {
        if !token.is_current(id) {
            let error = PyRuntimeError::new_err(format!(
                "This iterator has been invalidated because another iterator has been created from the same \
                 IterDataPipe: {}. A pipe has one valid iterator at a time; `.fork()` gives a pipe several readers.",
                describe(pipe)
            ));
            error.value(py).setattr("_torchdata_invalid", true)?; // an error without an item is never skipped
            return Err(error);
        }
        token.finish();
        return Ok(Outcome::Ended);
    };
    let error = if !error.is_instance_of::<PyStopIteration>(py) {
        error
    } else if sealed {
        stopped_by(py, &format!("{}: the function", describe(pipe)), error)
    } else {
        token.finish();
        let is_plain = error.get_type(py).is(py.get_type::<PyStopIteration>());
        return Ok(if is_plain { Outcome::Ended } else { Outcome::Paused });
    };
    explained(error, pipe, token.yielded(), iterator)
}

#[cold]
fn explained(error: PyErr, pipe: &Bound<'_, PyAny>, yielded: u64, iterator: &Bound<'_, PyAny>) -> PyResult<Outcome> {
    let py = pipe.py();
    let value = error.value(py);
    // The traceback is passed separately, because before Python 3.12, fetching an exception does not set its
    // `__traceback__`.
    let passed = (value, error.traceback(py), pipe, yielded, iterator);
    let reply = PyModule::import(py, "torchdata.datapipes._pipe.explaining")
        .and_then(|module| module.call_method1("explain", passed));
    match reply {
        Ok(reply) if reply.is_instance_of::<PyBaseException>() => Err(PyErr::from_value(reply)), // too many exceptions
        Ok(reply) if reply.is_truthy()? => Ok(Outcome::Continues),
        Ok(_) => Err(PyErr::from_value(value.clone().into_any())),
        // If `explain` fails, the original exception is raised. A KeyboardInterrupt in `explain` replaces the original
        // exception.
        Err(other) if other.is_instance_of::<PyException>(py) => Err(error),
        Err(other) => Err(other),
    }
}

fn describe(pipe: &Bound<'_, PyAny>) -> String {
    pipe.repr()
        .map(|text| text.to_string())
        .or_else(|_| pipe.get_type().name().map(|name| name.to_string()))
        .unwrap_or_else(|_| "a pipe".to_owned())
}

/// Returns an attribute of the guard's iterator, such as a generator's `close`, as an attribute of the guard.
unsafe extern "C" fn get_attribute(object: *mut ffi::PyObject, name: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the interpreter passes an instance of `IteratorGuard` and a str. If a call returns NULL, an exception is
    // set.
    unsafe {
        let found = ffi::PyObject_GenericGetAttr(object, name);
        let iterator = (*object.cast::<Guard>()).iterator;
        if !found.is_null() || iterator.is_null() {
            return found;
        }
        if ffi::PyErr_ExceptionMatches(ffi::PyExc_AttributeError) == 0 {
            return found;
        }
        ffi::PyErr_Clear();
        ffi::PyObject_GetAttr(iterator, name)
    }
}

unsafe extern "C" fn traverse(object: *mut ffi::PyObject, visit: ffi::visitproc, argument: *mut c_void) -> c_int {
    // SAFETY: the garbage collector calls this slot only with instances of `IteratorGuard`.
    unsafe {
        let guard = object.cast::<Guard>();
        let class = ffi::Py_TYPE(object).cast::<ffi::PyObject>();
        for reference in [class, (*guard).pipe, (*guard).iterator, (*guard).token_object] {
            if !reference.is_null() {
                let stopped = visit(reference, argument);
                if stopped != 0 {
                    return stopped;
                }
            }
        }
    }
    0
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the garbage collector calls this slot only with instances of `IteratorGuard`. `id` changes first, because
    // dropping a reference may run other code, which must find an invalid guard.
    unsafe {
        let guard = object.cast::<Guard>();
        (*guard).id = CLEARED;
        for field in [&raw mut (*guard).iterator, &raw mut (*guard).pipe, &raw mut (*guard).token_object] {
            let reference = std::mem::replace(&mut *field, std::ptr::null_mut());
            ffi::Py_XDECREF(reference);
        }
    }
    0
}

unsafe extern "C" fn deallocate(object: *mut ffi::PyObject) {
    // SAFETY: no references to the guard remain. The interpreter requires that an object of a heap type is freed by the
    // following calls, in exactly this order.
    unsafe {
        ffi::PyObject_GC_UnTrack(object.cast());
        clear(object);
        let ranging = (*object.cast::<Guard>()).ranging;
        // SAFETY: `guard_iterator` created the pointer with `into_raw`, and no other code uses the pointer any more.
        drop((!ranging.is_null()).then(|| Box::from_raw(ranging)));
        let class = ffi::Py_TYPE(object);
        let free: ffi::freefunc = std::mem::transmute(ffi::PyType_GetSlot(class, ffi::Py_tp_free));
        free(object.cast());
        ffi::Py_DECREF(class.cast());
    }
}
