//! A base of Python classes whose finaliser is never lost to Ctrl-C.
//!
//! Python handles signals at the first line of a `__del__` as anywhere else, and ignores what is raised there: the
//! object is gone, unfinished, and the KeyboardInterrupt too. So the slot that the interpreter calls is native here,
//! where no signal is handled. It calls the method `_finalize`. If a signal interrupts that, it calls `_finalize` once
//! more and tells it so: this second call has to deliver the interrupt at its end. An object whose own attribute
//! `_ended` is true has nothing to finish: no line of Python runs for it in which a signal handler could raise in vain.
//!
//! Runs in whichever thread drops the last reference, or collects garbage. Nothing is owned, the type adds no field.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyType};

use crate::panics::caught;

/// How often it is tried at most. Each time takes one more press of Ctrl-C, within the same instant.
const TRIES: usize = 1000;

/// Makes the type. A class that derives from it has `__del__` from it, and must have `_finalize(interrupted)`.
pub fn finalized_type(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    let slot = |number: c_int, pointer: *mut c_void| ffi::PyType_Slot { slot: number, pfunc: pointer };
    let doc = c"A base of classes whose `_finalize(interrupted)` is called at their end, whatever signals do, unless `_ended`.";
    let mut slots = [
        slot(ffi::Py_tp_doc, doc.as_ptr().cast_mut().cast()),
        slot(ffi::Py_tp_finalize, finalize as *mut c_void),
        slot(0, std::ptr::null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"torchdata._native.Finalized".as_ptr(),
        basicsize: size_of::<ffi::PyObject>() as c_int,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: a well-formed specification whose slots have the signatures that the interpreter expects of them.
    let class = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&mut spec))? };
    Ok(class.cast_into::<PyType>()?)
}

/// The slot. An exception that was being raised when the object was dropped goes on afterwards.
unsafe extern "C" fn finalize(object: *mut ffi::PyObject) {
    let run = |py: Python<'_>| {
        // SAFETY: the interpreter calls the slot with an object that it keeps alive meanwhile.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        if has_ended(&object) {
            return;
        }
        if let Err(error) = finished(&object) {
            error.write_unraisable(py, Some(&object));
        }
    };
    let (mut kind, mut value, mut traceback) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the interpreter holds the GIL where it calls a slot; the three references go back as they came.
    unsafe {
        ffi::PyErr_Fetch(&mut kind, &mut value, &mut traceback);
        caught((), || Python::attach_unchecked(run));
        if !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_WriteUnraisable(object); // a panic, which is none of the caller's errors
        }
        ffi::PyErr_Restore(kind, value, traceback);
    }
}

/// Returns whether the object says that it has ended. Looks into its dictionary, as looking up an attribute may run Python.
fn has_ended(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive, and null asks for no context.
    let found = unsafe {
        Bound::from_owned_ptr_or_err(object.py(), ffi::PyObject_GenericGetDict(object.as_ptr(), std::ptr::null_mut()))
    };
    let own = found.and_then(|found| Ok(found.cast_into::<PyDict>()?));
    own.and_then(|own| own.get_item("_ended"))
        .is_ok_and(|ended| ended.is_some_and(|ended| ended.is(PyBool::new(object.py(), true))))
}

/// Calls `_finalize` until it was not interrupted.
fn finished(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = object.py();
    let mut outcome = Ok(());
    for attempt in 0..TRIES {
        outcome = object.call_method1("_finalize", (attempt > 0,)).map(drop);
        if !outcome.as_ref().is_err_and(|error| error.is_instance_of::<PyKeyboardInterrupt>(py)) {
            break;
        }
    }
    outcome
}
