//! NumPy's C API, looked up when the first array or scalar is met: importing this extension does not import NumPy.
//!
//! The API is a table of pointers behind a capsule of NumPy's. It is looked up here rather than by the `numpy` crate,
//! of which only type definitions are used: the crate panics if the look-up fails, as it does when a signal handler
//! raises meanwhile, and keeps the table behind a lock that a forked child may inherit from a thread that it lacks.
//! Here a failure is an exception and the next call tries again; the table is published by one store, and two threads
//! that look it up at once find the same one.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use numpy::npyffi::{PyArray_DatetimeDTypeMetaData, PyArray_DescrProto, npy_intp};
use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyString};

/// NumPy's C API. Holding one means that NumPy is loaded, which it stays.
#[derive(Debug, Clone, Copy)]
pub struct NumPy(NonNull<*const c_void>);

/// The table, once it was found.
static TABLE: AtomicPtr<*const c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Whether it is NumPy 2's, which lays its dtypes out in another way.
static SECOND: AtomicBool = AtomicBool::new(false);

/// The feature version of NumPy 2.0.
const SECOND_FEATURES: c_uint = 0x12;

/// A built-in dtype of NumPy 2: the beginning of `_PyArray_LegacyDescr` in its headers.
#[repr(C)]
struct SecondDescr {
    object: ffi::PyObject,
    class: *mut ffi::PyTypeObject,
    letters: [u8; 4],
    number: c_int,
    flags: u64,
    size: npy_intp,
    alignment: npy_intp,
    metadata: *mut ffi::PyObject,
    hash: isize,
    reserved: [*mut c_void; 2],
    subarray: *mut c_void,
    fields: *mut ffi::PyObject,
    names: *mut ffi::PyObject,
    unit: *mut c_void,
}

/// The newest binary interface that this extension knows: that of NumPy 2.
const NEWEST_ABI: c_uint = 0x0200_0000;

/// NumPy's C API; imports NumPy if it is not imported yet.
///
/// Runs no Python code if NumPy is loaded, so that no signal handler can get in between.
#[inline]
pub fn numpy(py: Python<'_>) -> PyResult<NumPy> {
    // SYNC(numpy): pairs with `look_up`.
    match NonNull::new(TABLE.load(Ordering::Acquire)) {
        Some(table) => Ok(NumPy(table)),
        None => look_up(py),
    }
}

#[cold]
fn look_up(py: Python<'_>) -> PyResult<NumPy> {
    if loaded(py, "numpy")?.is_none() {
        PyModule::import(py, "torchdata._importing")?.getattr("import_whole")?.call1(("numpy",))?;
    }
    // The second name is that of before NumPy 2.
    let module = match loaded(py, "numpy._core._multiarray_umath")? {
        Some(module) => module,
        None => loaded(py, "numpy.core._multiarray_umath")?
            .ok_or_else(|| PyImportError::new_err("NumPy was imported, but its C API is nowhere to be found"))?,
    };
    let capsule = module.getattr("_ARRAY_API")?.cast_into::<PyCapsule>()?;
    let table: NonNull<*const c_void> = capsule.pointer_checked(None)?.cast();
    // SAFETY: the first entry of every version's table is `unsigned int PyArray_GetNDArrayCVersion(void)`.
    let abi = unsafe {
        let version: extern "C" fn() -> c_uint = std::mem::transmute(table.as_ptr().read());
        version()
    };
    if abi > NEWEST_ABI {
        return Err(PyRuntimeError::new_err(format!(
            "this NumPy has the binary interface {abi:#x}, and this torchdata knows those up to {NEWEST_ABI:#x}: install \
             an older NumPy or a newer torchdata"
        )));
    }
    // SAFETY: and entry 211 is `unsigned int PyArray_GetNDArrayCFeatureVersion(void)`.
    let features = unsafe {
        let version: extern "C" fn() -> c_uint = std::mem::transmute(table.as_ptr().add(211).read());
        version()
    };
    SECOND.store(features >= SECOND_FEATURES, Ordering::Relaxed); // published with the table
    std::mem::forget(capsule); // it stays as long as the pointer does, whatever becomes of the module
    // SYNC(numpy): pairs with `numpy`; what the table's entries point to was made before.
    TABLE.store(table.as_ptr(), Ordering::Release);
    Ok(NumPy(table))
}

/// The module, if it is imported to the end.
fn loaded<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let name = PyString::new(py, name);
    // SAFETY: gives a new reference, or NULL, with an exception set where there is more to it than that there is none.
    let module = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyImport_GetModule(name.as_ptr())) };
    let Some(module) = module else { return PyErr::take(py).map_or(Ok(None), Err) };
    let begun = module.getattr("__spec__").and_then(|spec| spec.getattr("_initializing"));
    let whole = !begun.is_ok_and(|begun| begun.is_truthy().unwrap_or(false));
    Ok(whole.then_some(module))
}

impl NumPy {
    /// Entry `index` of the table, of the type that NumPy's headers give it.
    ///
    /// # Safety
    /// `T` is a pointer or a function pointer of that type.
    unsafe fn entry<T: Copy>(self, index: usize) -> T {
        const { assert!(size_of::<T>() == size_of::<*const c_void>()) };
        // SAFETY: the table has more than 300 entries in every version, and lives for ever.
        unsafe { self.0.as_ptr().add(index).cast::<T>().read() }
    }

    /// The class of arrays.
    pub fn array_class(self) -> *mut ffi::PyTypeObject {
        // SAFETY: PyArray_Type.
        unsafe { self.entry(2) }
    }

    /// The dtype of this number; if `own`, an object of its own, which nobody else refers to.
    ///
    /// # Safety
    /// `number` is that of a built-in dtype.
    pub unsafe fn dtype(self, py: Python<'_>, number: c_int, own: bool) -> PyResult<Bound<'_, PyAny>> {
        // SAFETY: PyArray_DescrFromType or PyArray_DescrNewFromType; a new reference, or NULL with an exception set.
        unsafe {
            let make: unsafe extern "C" fn(c_int) -> *mut ffi::PyObject = self.entry(if own { 96 } else { 45 });
            Bound::from_owned_ptr_or_err(py, make(number))
        }
    }

    /// Bytes of an element.
    ///
    /// # Safety
    /// `dtype` is a built-in one, and lives.
    pub unsafe fn item_size(self, dtype: *const c_void) -> npy_intp {
        // SAFETY: on what the caller promises; which of the two layouts it has depends on the version alone.
        unsafe {
            if SECOND.load(Ordering::Relaxed) {
                (*dtype.cast::<SecondDescr>()).size
            } else {
                (*dtype.cast::<PyArray_DescrProto>()).elsize as npy_intp
            }
        }
    }

    /// Whether a user has given a dtype metadata.
    ///
    /// # Safety
    /// `dtype` is a built-in one, and lives.
    pub unsafe fn has_metadata(self, dtype: *const c_void) -> bool {
        // SAFETY: as for `item_size`.
        unsafe {
            let metadata = if SECOND.load(Ordering::Relaxed) {
                (*dtype.cast::<SecondDescr>()).metadata
            } else {
                (*dtype.cast::<PyArray_DescrProto>()).metadata
            };
            !metadata.is_null() && metadata != ffi::Py_None()
        }
    }

    /// The unit of a dtype of times; NULL if this NumPy keeps it elsewhere.
    ///
    /// # Safety
    /// `dtype` is `datetime64` or `timedelta64`, and lives.
    pub unsafe fn unit_of(self, dtype: *const c_void) -> *mut PyArray_DatetimeDTypeMetaData {
        // SAFETY: as for `item_size`.
        unsafe {
            if SECOND.load(Ordering::Relaxed) {
                (*dtype.cast::<SecondDescr>()).unit.cast()
            } else {
                (*dtype.cast::<PyArray_DescrProto>()).c_metadata.cast()
            }
        }
    }

    /// A new array of a dtype: with memory of its own (`data` NULL), or over `data`. NumPy finds out most flags itself.
    ///
    /// # Safety
    /// `dtype` is a built-in one. `strides` is NULL, or has as many entries as there are lengths. `data`, if given,
    /// covers the array and outlives it.
    pub unsafe fn array<'py>(
        self,
        dtype: Bound<'py, PyAny>,
        shape: &mut [npy_intp],
        strides: *mut npy_intp,
        data: *mut c_void,
        flags: c_int,
    ) -> PyResult<Bound<'py, PyAny>> {
        type New = unsafe extern "C" fn(
            *mut ffi::PyTypeObject,
            *mut ffi::PyObject,
            c_int,
            *mut npy_intp,
            *mut npy_intp,
            *mut c_void,
            c_int,
            *mut ffi::PyObject,
        ) -> *mut ffi::PyObject;
        let py = dtype.py();
        // SAFETY: PyArray_NewFromDescr, which takes over the reference to the dtype. A new reference, or NULL with an
        // exception set.
        unsafe {
            let new: New = self.entry(94);
            let (dimensions, no_parent) = (shape.len() as c_int, std::ptr::null_mut());
            let class = self.array_class();
            let array = new(class, dtype.into_ptr(), dimensions, shape.as_mut_ptr(), strides, data, flags, no_parent);
            Bound::from_owned_ptr_or_err(py, array)
        }
    }

    /// Makes `base` what keeps the memory of `array` alive.
    pub fn set_base(self, array: &Bound<'_, PyAny>, base: Bound<'_, PyAny>) -> PyResult<()> {
        // SAFETY: PyArray_SetBaseObject; it takes over the reference to `base`, also if it fails.
        let done = unsafe {
            let set: unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int = self.entry(282);
            set(array.as_ptr(), base.into_ptr())
        };
        if done < 0 { Err(PyErr::fetch(array.py())) } else { Ok(()) }
    }

    /// The dtype of a NumPy scalar.
    ///
    /// # Safety
    /// `scalar` is a NumPy scalar.
    pub unsafe fn dtype_of<'py>(self, scalar: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: PyArray_DescrFromScalar; a new reference, or NULL with an exception set.
        unsafe {
            let dtype: unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject = self.entry(57);
            Bound::from_owned_ptr_or_err(scalar.py(), dtype(scalar.as_ptr()))
        }
    }

    /// Writes the value of a NumPy scalar to `to`.
    ///
    /// # Safety
    /// `scalar` is a NumPy scalar of a built-in dtype, for whose element `to` has room and the right alignment.
    pub unsafe fn value_of(self, scalar: &Bound<'_, PyAny>, to: *mut c_void) {
        // SAFETY: PyArray_ScalarAsCtype, on what the caller promises.
        unsafe {
            let write: unsafe extern "C" fn(*mut ffi::PyObject, *mut c_void) = self.entry(62);
            write(scalar.as_ptr(), to);
        }
    }

    /// A NumPy scalar of a dtype out of the element at `from`.
    ///
    /// # Safety
    /// `dtype` is a built-in one, and at `from` lies an element of it, aligned.
    pub unsafe fn scalar<'py>(self, dtype: &Bound<'py, PyAny>, from: *mut c_void) -> PyResult<Bound<'py, PyAny>> {
        type Make = unsafe extern "C" fn(*mut c_void, *mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;
        // SAFETY: PyArray_Scalar; a new reference, or NULL with an exception set.
        unsafe {
            let make: Make = self.entry(60);
            Bound::from_owned_ptr_or_err(dtype.py(), make(from, dtype.as_ptr(), std::ptr::null_mut()))
        }
    }
}
