//! Implements fast iterators for `Filter`, for batches and for pipes that read by index.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pyo3::exceptions::{PyException, PyRuntimeError, PyStopIteration};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};

unsafe extern "C" {
    /// CPython 3.12 added this function to the stable ABI. CPython 3.11 exports the function without declaring it.
    fn PyObject_Vectorcall(
        callable: *mut ffi::PyObject,
        arguments: *const *mut ffi::PyObject,
        count_and_flags: usize,
        names: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// A flag that allows the called function to overwrite the array entry before the first argument. A bound method stores
/// `self` in the entry before the first argument, instead of copying the arguments.
const ARGUMENTS_OFFSET: usize = 1 << (usize::BITS - 1);

pub fn call<'py>(function: &Bound<'py, PyAny>, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let arguments = [std::ptr::null_mut(), argument.as_ptr()];
    // SAFETY: `first` points to one argument. The array entry before the argument is unused, as `ARGUMENTS_OFFSET`
    // requires. `function` and `argument` keep their objects alive during the call. PyObject_Vectorcall returns a new
    // reference, or NULL with an exception set.
    unsafe {
        let first = arguments.as_ptr().add(1);
        let result = PyObject_Vectorcall(function.as_ptr(), first, 1 | ARGUMENTS_OFFSET, std::ptr::null_mut());
        Bound::from_owned_ptr_or_err(function.py(), result)
    }
}

/// Returns the C function that computes the next item, or None if the object is not an iterator.
pub fn iternext_of(iterator: &Bound<'_, PyAny>) -> Option<ffi::iternextfunc> {
    // SAFETY: the slot contains a function of the type `iternextfunc`, or NULL if the object is not an iterator.
    unsafe { std::mem::transmute(ffi::PyType_GetSlot(iterator.get_type().as_type_ptr(), ffi::Py_tp_iternext)) }
}

/// Replaces a StopIteration of a user function by a RuntimeError, because a StopIteration would end the data (PEP 479).
pub fn stopped_by(py: Python<'_>, function: &str, error: PyErr) -> PyErr {
    let raised = PyRuntimeError::new_err(format!(
        "{function} raised StopIteration, which would end the iteration although the source has more items; catch it \
         in the function (`next(iterator, default)` does not raise it)"
    ));
    raised.set_cause(py, Some(error));
    raised
}

pub fn next_of<'py>(iterator: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = iterator.py();
    // SAFETY: callers pass an iterator. NULL means the end of the items or an exception.
    let item = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyIter_Next(iterator.as_ptr())) };
    match item {
        Some(item) => Ok(Some(item)),
        None => PyErr::take(py).map_or(Ok(None), Err),
    }
}

/// Yields the items that satisfy `predicate`, like `filter(predicate, source)`.
#[pyclass(frozen, new = "from_fields", module = "torchdata._native")]
pub struct FilterIterator {
    source: Py<PyAny>,
    predicate: Py<PyAny>,
    plain: Vec<Py<PyType>>,
    /// A function that is called for each dropped item, unless the type of the item is in `plain`.
    on_dropped: Py<PyAny>,
    /// The function that converts results of `predicate` other than bools to bools.
    to_bool: Py<PyAny>,
}

#[pymethods]
impl FilterIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        while let Some(item) = next_of(self.source.bind(py))? {
            let result = call(self.predicate.bind(py), &item).map_err(|error| {
                let is_stop = error.is_instance_of::<PyStopIteration>(py);
                if is_stop { stopped_by(py, "Filter: filter_fn", error) } else { error }
            })?;
            // SAFETY: the code only compares the addresses of `True` and `False`, which are never freed.
            let (is_true, is_false) =
                unsafe { (result.as_ptr() == ffi::Py_True(), result.as_ptr() == ffi::Py_False()) };
            let keep = is_true || (!is_false && self.to_bool.bind(py).call1((result,))?.is_truthy()?);
            if keep {
                return Ok(Some(item));
            }
            // SAFETY: `Py_TYPE` only reads the type of an existing object.
            let class = unsafe { ffi::Py_TYPE(item.as_ptr()) };
            if !self.plain.iter().any(|plain| std::ptr::eq(plain.as_ptr().cast(), class)) {
                self.on_dropped.bind(py).call1((item,))?;
            }
        }
        Ok(None)
    }

    /// Like the built-in `filter`, this class does not define `__clear__`, because the references of an iterator never
    /// change.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.source)?;
        visit.call(&self.predicate)?;
        self.plain.iter().try_for_each(|class| visit.call(class))?;
        visit.call(&self.on_dropped)?;
        visit.call(&self.to_bool)
    }
}

/// Yields `item_at(index)` for each index. In contrast to a generator, the iterator continues after an exception.
#[pyclass(frozen, new = "from_fields", module = "torchdata._native")]
pub struct IndexedIterator {
    item_at: Py<PyAny>,
    indices: Py<PyAny>,
    /// `on_error(error, index)` is called for each exception of `item_at`, except for exceptions such as
    /// KeyboardInterrupt.
    on_error: Py<PyAny>,
}

#[pymethods]
impl IndexedIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(index) = next_of(self.indices.bind(py))? else { return Ok(None) };
        call(self.item_at.bind(py), &index).map(Some).or_else(|error| {
            if error.is_instance_of::<PyException>(py) {
                self.on_error.bind(py).call1((error.value(py), index))?;
            }
            Err(error)
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.item_at)?;
        visit.call(&self.indices)?;
        visit.call(&self.on_error)
    }
}

/// Yields lists of `size` items. Between two lists, the iterator refers to no items, so that they can be freed. Like a
/// generator, the iterator ends after an exception.
#[pyclass(frozen, module = "torchdata._native")]
pub struct BatchIterator {
    source: Py<PyAny>,
    /// The number of items per list, or 0 after the end.
    size: AtomicUsize,
    drop_last: bool,
    /// A function that returns a new list.
    new_list: Py<PyAny>,
}

#[pymethods]
impl BatchIterator {
    #[new]
    fn new(source: Py<PyAny>, size: usize, drop_last: bool, new_list: Py<PyAny>) -> Self {
        Self { source, size: size.into(), drop_last, new_list }
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let list = self.new_list.bind(py).call0()?.cast_into::<PyList>()?;
        let (size, source) = (self.size.load(Relaxed), self.source.bind(py));
        for _ in 0..size {
            let item = next_of(source).inspect_err(|_| self.size.store(0, Relaxed))?;
            let Some(item) = item else {
                self.size.store(0, Relaxed);
                return Ok((!list.is_empty() && !self.drop_last).then_some(list));
            };
            list.append(item)?;
        }
        Ok((size > 0).then_some(list))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.source)?;
        visit.call(&self.new_list)
    }
}
