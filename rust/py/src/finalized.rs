//! Defines a base class with a finalizer that always completes, even if Ctrl-C interrupts the finalizer.
//!
//! If Ctrl-C interrupts a `__del__` method, Python ignores the KeyboardInterrupt and leaves the object half finalized.
//! The finalizer in this module handles a KeyboardInterrupt by calling the method `_finalize` again. If the attribute
//! `_ended` of an object is true, the finalizer runs no Python code.

use std::ffi::{CStr, c_int, c_ulong, c_void};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyType};

use crate::panics::caught;

const TRIES: usize = 1000;

pub fn finalized_type(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    let doc = c"Calls `_finalize(interrupted)` when an object is freed, even on a signal, unless `_ended` is set.";
    let slots = [(ffi::Py_tp_doc, doc.as_ptr().cast_mut().cast()), (ffi::Py_tp_finalize, finalize as *mut c_void)];
    // SAFETY: the finalizer has the signature that the interpreter expects.
    unsafe {
        new_type(py, c"torchdata._native.Finalized", size_of::<ffi::PyObject>(), ffi::Py_TPFLAGS_BASETYPE, &slots)
    }
}

/// # Safety
/// The functions in `slots` have the signatures that the interpreter expects.
pub unsafe fn new_type<'py>(
    py: Python<'py>,
    name: &'static CStr,
    size: usize,
    flags: c_ulong,
    slots: &[(c_int, *mut c_void)],
) -> PyResult<Bound<'py, PyType>> {
    let all = slots.iter().chain(&[(0, std::ptr::null_mut())]);
    let mut slots: Vec<_> = all.map(|&(slot, pfunc)| ffi::PyType_Slot { slot, pfunc }).collect();
    let (basicsize, flags) = (size as c_int, (ffi::Py_TPFLAGS_DEFAULT | flags) as _);
    let mut spec = ffi::PyType_Spec { name: name.as_ptr(), basicsize, itemsize: 0, flags, slots: slots.as_mut_ptr() };
    // SAFETY: the specification is complete, and the caller guarantees that its slots are correct.
    let class = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&mut spec))? };
    Ok(class.cast_into::<PyType>()?)
}

/// Finalizes an object. An exception that is being raised when the object is dropped stays the current exception.
#[allow(deprecated, reason = "the functions in place of the deprecated functions exist only from Python 3.12 on")]
unsafe extern "C" fn finalize(object: *mut ffi::PyObject) {
    let run = |py: Python<'_>| {
        // SAFETY: the interpreter keeps the object alive during the call.
        let object = unsafe { Bound::from_borrowed_ptr(py, object) };
        if has_ended(&object) {
            return;
        }
        if let Err(error) = finished(&object) {
            error.write_unraisable(py, Some(&object));
        }
    };
    let (mut kind, mut value, mut traceback) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the interpreter holds the GIL while it calls a slot. The current exception is saved and restored.
    unsafe {
        ffi::PyErr_Fetch(&mut kind, &mut value, &mut traceback);
        caught((), || Python::attach_unchecked(run));
        if !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_WriteUnraisable(object);
        }
        ffi::PyErr_Restore(kind, value, traceback);
    }
}

/// Reads the attribute `_ended` from the object's dictionary, because an attribute lookup could run Python code.
fn has_ended(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object exists, and PyObject_GenericGetDict accepts NULL as its context.
    let found = unsafe {
        Bound::from_owned_ptr_or_err(object.py(), ffi::PyObject_GenericGetDict(object.as_ptr(), std::ptr::null_mut()))
    };
    let own = found.and_then(|found| Ok(found.cast_into::<PyDict>()?));
    own.and_then(|own| own.get_item("_ended"))
        .is_ok_and(|ended| ended.is_some_and(|ended| ended.is(PyBool::new(object.py(), true))))
}

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
