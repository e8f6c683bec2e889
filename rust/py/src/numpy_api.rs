//! Looks up NumPy's C API, a table of pointers, when an array or scalar is first used.
//!
//! The corresponding function of the `numpy` crate is not used, because it panics without NumPy, and takes a lock that
//! a forked child could inherit in locked state.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use numpy::npyffi::objects::_PyArray_DescrNumPy2_fields as DescrFields;
use numpy::npyffi::{PyArray_DatetimeDTypeMetaData, PyArray_DescrProto, npy_intp};
use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyString};

#[derive(Debug, Clone, Copy)]
pub struct NumPy(NonNull<*const c_void>);

static TABLE: AtomicPtr<*const c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Whether NumPy 2 is loaded, which stores dtypes in another memory layout than NumPy 1.
static SECOND: AtomicBool = AtomicBool::new(false);

const SECOND_FEATURES: c_uint = 0x12;

/// The first fields of a built-in dtype in NumPy 2 (`_PyArray_LegacyDescr` in NumPy's headers). The array of four
/// pointers contains the fields `subarray`, `fields`, `names` and `c_metadata`.
#[repr(C)]
struct SecondDescr(ffi::PyObject, DescrFields, [*mut c_void; 4]);

/// The newest ABI version that this module supports, which is the ABI version of NumPy 2.
const NEWEST_ABI: c_uint = 0x0200_0000;

/// Returns NumPy's C API. If NumPy is already loaded, this call runs no Python code.
#[inline]
pub fn numpy(py: Python<'_>) -> PyResult<NumPy> {
    // SYNC(numpy): pairs with the store in `look_up`.
    NonNull::new(TABLE.load(Ordering::Acquire)).map_or_else(|| look_up(py), |table| Ok(NumPy(table)))
}

#[cold]
fn look_up(py: Python<'_>) -> PyResult<NumPy> {
    if loaded(py, "numpy")?.is_none() {
        PyModule::import(py, "torchdata._importing")?.getattr("import_whole")?.call1(("numpy",))?;
    }
    let module = match loaded(py, "numpy._core._multiarray_umath")? {
        Some(module) => module,
        None => loaded(py, "numpy.core._multiarray_umath")?
            .ok_or_else(|| PyImportError::new_err("NumPy was imported, but its C API was not found"))?,
    };
    let capsule = module.getattr("_ARRAY_API")?.cast_into::<PyCapsule>()?;
    let table: NonNull<*const c_void> = capsule.pointer_checked(None)?.cast();
    let version = |entry: usize| {
        // SAFETY: in all versions of NumPy, the entries that are read below are functions without arguments that return
        // `unsigned int`.
        let version: extern "C" fn() -> c_uint = unsafe { std::mem::transmute(table.as_ptr().add(entry).read()) };
        version()
    };
    let abi = version(0); // PyArray_GetNDArrayCVersion
    if abi > NEWEST_ABI {
        return Err(PyRuntimeError::new_err(format!(
            "this NumPy has the binary interface {abi:#x}, but this torchdata supports up to {NEWEST_ABI:#x}: install \
             an older NumPy or a newer torchdata"
        )));
    }
    let features = version(211); // PyArray_GetNDArrayCFeatureVersion
    SECOND.store(features >= SECOND_FEATURES, Ordering::Relaxed);
    std::mem::forget(capsule); // the capsule must exist as long as the pointer, even if the module is unloaded
    // SYNC(numpy): pairs with the load in `numpy`. A thread that reads the pointer also reads the initialized table.
    TABLE.store(table.as_ptr(), Ordering::Release);
    Ok(NumPy(table))
}

fn loaded<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let name = PyString::new(py, name);
    // SAFETY: PyImport_GetModule returns a new reference or NULL. NULL without an exception means that the module is
    // not loaded.
    let module = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyImport_GetModule(name.as_ptr())) };
    let Some(module) = module else { return PyErr::take(py).map_or(Ok(None), Err) };
    let begun = module.getattr("__spec__").and_then(|spec| spec.getattr("_initializing"));
    let whole = !begun.is_ok_and(|begun| begun.is_truthy().unwrap_or(false));
    Ok(whole.then_some(module))
}

impl NumPy {
    /// Returns entry `index` of the table as a value of type `T`.
    ///
    /// # Safety
    /// `T` is the type that NumPy's headers declare for this entry.
    unsafe fn entry<T: Copy>(self, index: usize) -> T {
        const { assert!(size_of::<T>() == size_of::<*const c_void>()) };
        // SAFETY: the table has more than 300 entries in every version of NumPy, and is never freed.
        unsafe { self.0.as_ptr().add(index).cast::<T>().read() }
    }

    /// Returns the dtype with the type number `number`. If `own` is true, the dtype is a new object that the caller may
    /// change.
    ///
    /// # Safety
    /// `number` is the type number of a built-in dtype.
    pub unsafe fn dtype(self, py: Python<'_>, number: c_int, own: bool) -> PyResult<Bound<'_, PyAny>> {
        // SAFETY: PyArray_DescrFromType and PyArray_DescrNewFromType return a new reference, or NULL with an exception.
        unsafe {
            let make: unsafe extern "C" fn(c_int) -> *mut ffi::PyObject = self.entry(if own { 96 } else { 45 });
            Bound::from_owned_ptr_or_err(py, make(number))
        }
    }

    /// # Safety
    /// `dtype` is an existing built-in dtype.
    pub unsafe fn item_size(self, dtype: *const c_void) -> npy_intp {
        // SAFETY: `dtype` is an existing built-in dtype, as this function requires.
        unsafe {
            if SECOND.load(Ordering::Relaxed) {
                (*dtype.cast::<SecondDescr>()).1.elsize
            } else {
                (*dtype.cast::<PyArray_DescrProto>()).elsize as npy_intp
            }
        }
    }

    /// # Safety
    /// `dtype` is an existing built-in dtype.
    pub unsafe fn has_metadata(self, dtype: *const c_void) -> bool {
        // SAFETY: `dtype` is an existing built-in dtype, as this function requires.
        unsafe {
            let metadata = if SECOND.load(Ordering::Relaxed) {
                (*dtype.cast::<SecondDescr>()).1.metadata
            } else {
                (*dtype.cast::<PyArray_DescrProto>()).metadata
            };
            !metadata.is_null() && metadata != ffi::Py_None()
        }
    }

    /// Returns the unit of a `datetime64` or `timedelta64` dtype, or NULL if this version of NumPy stores the unit
    /// elsewhere.
    ///
    /// # Safety
    /// `dtype` is an existing `datetime64` or `timedelta64`.
    pub unsafe fn unit_of(self, dtype: *const c_void) -> *mut PyArray_DatetimeDTypeMetaData {
        // SAFETY: `dtype` is an existing built-in dtype, as this function requires.
        unsafe {
            if SECOND.load(Ordering::Relaxed) {
                (*dtype.cast::<SecondDescr>()).2[3].cast()
            } else {
                (*dtype.cast::<PyArray_DescrProto>()).c_metadata.cast()
            }
        }
    }

    /// # Safety
    /// `dtype` is a built-in dtype. `strides` is NULL or as long as `shape`. `data`, if not NULL, is memory that
    /// contains the whole array, and that exists longer than the array.
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
        // SAFETY: in NumPy's C API table, entry 2 is PyArray_Type, and entry 94 is PyArray_NewFromDescr, which takes
        // ownership of the dtype, and returns a new reference, or NULL with an exception.
        unsafe {
            let new: New = self.entry(94);
            let (dimensions, no_parent) = (shape.len() as c_int, std::ptr::null_mut());
            let class: *mut ffi::PyTypeObject = self.entry(2);
            let array = new(class, dtype.into_ptr(), dimensions, shape.as_mut_ptr(), strides, data, flags, no_parent);
            Bound::from_owned_ptr_or_err(py, array)
        }
    }

    pub fn set_base(self, array: &Bound<'_, PyAny>, base: Bound<'_, PyAny>) -> PyResult<()> {
        // SAFETY: entry 282 is PyArray_SetBaseObject, which takes ownership of `base` even if it fails.
        let done = unsafe {
            let set: unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int = self.entry(282);
            set(array.as_ptr(), base.into_ptr())
        };
        if done < 0 { Err(PyErr::fetch(array.py())) } else { Ok(()) }
    }

    /// # Safety
    /// `scalar` is a NumPy scalar.
    pub unsafe fn dtype_of<'py>(self, scalar: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: entry 57 is PyArray_DescrFromScalar, which returns a new reference, or NULL with an exception.
        unsafe {
            let dtype: unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject = self.entry(57);
            Bound::from_owned_ptr_or_err(scalar.py(), dtype(scalar.as_ptr()))
        }
    }

    /// # Safety
    /// `scalar` is a NumPy scalar of a built-in dtype. `to` has room for one element of this dtype, and is aligned for
    /// the element.
    pub unsafe fn value_of(self, scalar: &Bound<'_, PyAny>, to: *mut c_void) {
        // SAFETY: entry 62 is PyArray_ScalarAsCtype. The caller guarantees that `scalar` is a NumPy scalar and that its
        // value fits into the memory at `to`.
        unsafe {
            let write: unsafe extern "C" fn(*mut ffi::PyObject, *mut c_void) = self.entry(62);
            write(scalar.as_ptr(), to);
        }
    }

    /// # Safety
    /// `dtype` is a built-in dtype, and `from` points to an aligned element of this dtype.
    pub unsafe fn scalar<'py>(self, dtype: &Bound<'py, PyAny>, from: *mut c_void) -> PyResult<Bound<'py, PyAny>> {
        type Make = unsafe extern "C" fn(*mut c_void, *mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;
        // SAFETY: entry 60 is PyArray_Scalar, which returns a new reference, or NULL with an exception.
        unsafe {
            let make: Make = self.entry(60);
            Bound::from_owned_ptr_or_err(dtype.py(), make(from, dtype.as_ptr(), std::ptr::null_mut()))
        }
    }
}
