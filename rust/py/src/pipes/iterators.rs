//! The hot loop of `Filter`: what the built-in `filter` does, with the pipe's own rules.

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyType;

unsafe extern "C" {
    /// Part of the stable ABI since CPython 3.12, and exported by 3.11 as well, where the headers of the limited API do
    /// not declare it. The calls that 3.11's headers do declare make a tuple, or walk variable arguments, for each
    /// item.
    fn PyObject_Vectorcall(
        callable: *mut ffi::PyObject,
        arguments: *const *mut ffi::PyObject,
        count_and_flags: usize,
        names: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// Says that the callee may use the slot before the arguments, which spares bound methods a copy.
const ARGUMENTS_OFFSET: usize = 1 << (usize::BITS - 1);

/// Calls a function with one argument.
#[inline]
pub fn call<'py>(function: &Bound<'py, PyAny>, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let arguments = [std::ptr::null_mut(), argument.as_ptr()];
    // SAFETY: one argument, with the free slot before it that the flag promises, all alive during the call; the result
    // is a new reference, or NULL with an exception set.
    unsafe {
        let first = arguments.as_ptr().add(1);
        let result = PyObject_Vectorcall(function.as_ptr(), first, 1 | ARGUMENTS_OFFSET, std::ptr::null_mut());
        Bound::from_owned_ptr_or_err(function.py(), result)
    }
}

/// The next item of an iterator; None at its end.
#[inline]
pub fn next_of<'py>(py: Python<'py>, iterator: &Py<PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    // SAFETY: a live iterator (the constructors check that); NULL is the end or an exception.
    let item = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyIter_Next(iterator.as_ptr())) };
    match item {
        Some(item) => Ok(Some(item)),
        None => PyErr::take(py).map_or(Ok(None), Err),
    }
}

/// `filter(predicate, source)` for predicates that return a bool.
#[pyclass(frozen, module = "torchdata._native")]
pub struct FilterIterator {
    source: Py<PyAny>,
    predicate: Py<PyAny>,
    /// Types whose dropped items need no `on_dropped`.
    plain: Vec<Py<PyType>>,
    on_dropped: Py<PyAny>,
    to_bool: Py<PyAny>,
}

impl FilterIterator {
    /// A StopIteration of the predicate would look like the end of the data (see PEP 479).
    #[cold]
    fn failure(&self, py: Python<'_>, error: PyErr) -> PyErr {
        if !error.is_instance_of::<PyStopIteration>(py) {
            return error;
        }
        let raised = PyRuntimeError::new_err(
            "Filter: filter_fn raised StopIteration, which would end the iteration although the source has more items; \
             catch it in the function (`next(iterator, default)` does not raise it)",
        );
        raised.set_cause(py, Some(error));
        raised
    }
}

#[pymethods]
impl FilterIterator {
    /// `on_dropped(item)` is called for dropped items of other types than `plain`; `to_bool(result)` turns results
    /// other than True and False into one of them, or raises.
    #[new]
    fn new(
        source: &Bound<'_, PyAny>,
        predicate: Py<PyAny>,
        plain: Vec<Py<PyType>>,
        on_dropped: Py<PyAny>,
        to_bool: Py<PyAny>,
    ) -> PyResult<Self> {
        let source = source.try_iter()?.into_any().unbind();
        Ok(Self { source, predicate, plain, on_dropped, to_bool })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        while let Some(item) = next_of(py, &self.source)? {
            let result = call(self.predicate.bind(py), &item).map_err(|error| self.failure(py, error))?;
            // SAFETY: compares addresses of objects that live for ever.
            let (is_true, is_false) =
                unsafe { (result.as_ptr() == ffi::Py_True(), result.as_ptr() == ffi::Py_False()) };
            let keep = is_true || (!is_false && self.to_bool.bind(py).call1((result,))?.is_truthy()?);
            if keep {
                return Ok(Some(item));
            }
            // SAFETY: reads the type of a live object.
            let class = unsafe { ffi::Py_TYPE(item.as_ptr()) };
            if !self.plain.iter().any(|plain| std::ptr::eq(plain.as_ptr().cast(), class)) {
                self.on_dropped.bind(py).call1((item,))?;
            }
        }
        Ok(None)
    }

    /// There is nothing to clear: like the built-in `filter` it refers to what it was made with for as long as it
    /// lives, so a cycle through it leads through something that was changed later, and that is cleared.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.source)?;
        visit.call(&self.predicate)?;
        self.plain.iter().try_for_each(|class| visit.call(class))?;
        visit.call(&self.on_dropped)?;
        visit.call(&self.to_bool)
    }
}
