//! NumPy arrays and scalars through NumPy's C API.

use std::ffi::c_int;

use numpy::npyffi::{NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_F_CONTIGUOUS, NPY_ARRAY_WRITEABLE};
use numpy::npyffi::{PyArray_Descr, PyArrayObject, npy_intp};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::numpy_api::numpy;
use crate::shared::ArenaBuffer;

/// Bytes of an element of a plain dtype: bool, integers, floats and complex numbers; None for all others.
pub fn plain_item_size(number: c_int) -> Option<usize> {
    Some(match number {
        0..=2 => 1,
        3 | 4 | 23 => 2,
        5 | 6 | 11 => 4,
        7 | 8 => size_of::<std::ffi::c_long>(),
        9 | 10 | 12 | 14 => 8,
        13 => LONG_DOUBLE,
        15 => 16,
        16 => 2 * LONG_DOUBLE,
        _ => return None,
    })
}

/// `sizeof(long double)` on the platforms that are supported.
const LONG_DOUBLE: usize = 16;
/// Most dimensions that an array may have.
const MOST_DIMENSIONS: usize = 64;

/// A plain, contiguous array taken apart.
pub struct ArrayParts<'a> {
    pub number: u8,
    pub fortran: bool,
    pub shape: &'a [npy_intp],
    pub data: *mut u8,
    pub len: usize,
}

fn fields<'a>(array: &'a Bound<'_, PyAny>) -> &'a numpy::npyffi::PyArrayObject_fields {
    // SAFETY: callers pass exact ndarrays, whose layout this is; the reference lives no longer than the object.
    unsafe { &(*array.as_ptr().cast::<PyArrayObject>()).fields }
}

/// Takes an exact ndarray apart; None where pickle should have it (other dtypes, other layouts).
pub fn parts<'a>(array: &'a Bound<'_, PyAny>) -> Option<ArrayParts<'a>> {
    let fields = fields(array);
    // SAFETY: an array always has a descriptor.
    let descr = unsafe { &(*fields.descr).fields };
    let item = plain_item_size(descr.type_num)?;
    let native = matches!(descr.byteorder as u8, b'=' | b'|');
    let in_c = fields.flags & NPY_ARRAY_C_CONTIGUOUS != 0;
    let in_fortran = fields.flags & NPY_ARRAY_F_CONTIGUOUS != 0;
    if !native || !(in_c || in_fortran) {
        return None;
    }
    let shape = if fields.nd == 0 {
        &[][..]
    } else {
        // SAFETY: an array of `nd` dimensions has that many lengths.
        unsafe { std::slice::from_raw_parts(fields.dimensions, fields.nd as usize) }
    };
    let len = shape.iter().try_fold(item, |len, &dim| len.checked_mul(usize::try_from(dim).ok()?))?;
    let number = u8::try_from(descr.type_num).ok()?;
    Some(ArrayParts { number, fortran: in_fortran && !in_c, shape, data: fields.data.cast(), len })
}

/// The arena buffer under an array, where the array covers it exactly.
pub fn arena_buffer<'py>(array: &Bound<'py, PyAny>, data: *mut u8, len: usize) -> Option<Bound<'py, ArenaBuffer>> {
    let mut base = fields(array).base;
    for _ in 0..4 {
        if base.is_null() {
            return None;
        }
        // SAFETY: the base of a live array is a live object, kept alive by the array.
        let object = unsafe { Bound::from_borrowed_ptr(array.py(), base) };
        if let Ok(buffer) = object.cast::<ArenaBuffer>() {
            let block = &buffer.get().block;
            return (block.as_mut_ptr() == data && block.len() == len).then(|| buffer.clone());
        }
        if super::helpers::kind_of(&object).ok()? != super::helpers::Kind::Array {
            return None;
        }
        base = fields(&object).base;
    }
    None
}

/// Makes an array read-only: its memory belongs to somebody else from now on.
pub fn freeze(array: &Bound<'_, PyAny>) {
    // SAFETY: the GIL is held and the flags of an exact ndarray are changed as NumPy's own macro does.
    unsafe { (*array.as_ptr().cast::<PyArrayObject>()).fields.flags &= !NPY_ARRAY_WRITEABLE };
}

/// A new array: with memory of its own (`data` None), or over memory that `base` owns.
pub fn make<'py>(
    py: Python<'py>,
    number: u8,
    fortran: bool,
    shape: &mut [npy_intp],
    over: Option<(*mut u8, Bound<'py, PyAny>)>,
) -> PyResult<Bound<'py, PyAny>> {
    if plain_item_size(c_int::from(number)).is_none() || shape.len() > MOST_DIMENSIONS {
        return Err(PyValueError::new_err("an array of an unknown kind was received"));
    }
    let order = if fortran { NPY_ARRAY_F_CONTIGUOUS } else { 0 };
    let (data, flags) = match &over {
        Some((data, _)) => (*data, order | NPY_ARRAY_WRITEABLE | if fortran { 0 } else { NPY_ARRAY_C_CONTIGUOUS }),
        None => (std::ptr::null_mut(), order),
    };
    let numpy = numpy(py)?;
    // SAFETY: the number is that of a plain dtype; `data`, where given, covers the array (callers check the length) and
    // is kept alive by `base`.
    let array = unsafe { numpy.array(py, c_int::from(number), shape, data.cast(), flags)? };
    if let Some((_, base)) = over {
        numpy.set_base(&array, base)?;
    }
    Ok(array)
}

/// Memory of an array that was made by `make` without `over`.
pub fn data_of(array: &Bound<'_, PyAny>) -> *mut u8 {
    fields(array).data.cast()
}

/// The dtype number and bytes of a plain NumPy scalar; None where pickle should have it.
pub fn scalar_parts(scalar: &Bound<'_, PyAny>) -> PyResult<Option<(u8, Vec<u8>)>> {
    let numpy = numpy(scalar.py())?;
    // SAFETY: callers pass NumPy scalars, whose dtype is read while it lives; what is written is one element of a plain
    // dtype, which fits the buffer.
    unsafe {
        let dtype = numpy.dtype_of(scalar)?;
        let fields = &(*dtype.as_ptr().cast::<PyArray_Descr>()).fields;
        let native = matches!(fields.byteorder as u8, b'=' | b'|');
        let Some(size) = plain_item_size(fields.type_num).filter(|_| native) else { return Ok(None) };
        let mut bytes = [0_u128; 2];
        numpy.value_of(scalar, bytes.as_mut_ptr().cast());
        let bytes = std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), size).to_vec();
        Ok(u8::try_from(fields.type_num).ok().map(|number| (number, bytes)))
    }
}

/// A NumPy scalar from its dtype number and bytes.
pub fn make_scalar<'py>(py: Python<'py>, number: u8, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    if plain_item_size(c_int::from(number)) != Some(bytes.len()) {
        return Err(PyValueError::new_err("a scalar of an unknown kind was received"));
    }
    let mut aligned = [0_u128; 2];
    // SAFETY: the length was checked to be that of an element of the dtype, at most 32; the memory is aligned for any.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), aligned.as_mut_ptr().cast(), bytes.len());
        numpy(py)?.scalar(py, c_int::from(number), aligned.as_mut_ptr().cast())
    }
}

/// A new one-dimensional array with these elements.
pub fn array_of<'py, T: Element>(py: Python<'py>, elements: &[T]) -> PyResult<Bound<'py, PyAny>> {
    let len = npy_intp::try_from(elements.len()).map_err(|_| PyValueError::new_err("the array is too long"))?;
    let array = make(py, T::NUMBER, false, &mut [len], None)?;
    // SAFETY: the array was just made with room for these elements, and nobody else knows it yet.
    unsafe { std::ptr::copy_nonoverlapping(elements.as_ptr(), data_of(&array).cast(), elements.len()) };
    Ok(array)
}

/// What `array_of` makes arrays of.
pub trait Element: Copy {
    /// The number of NumPy's dtype that has the same elements.
    const NUMBER: u8;
}

impl Element for f32 {
    const NUMBER: u8 = 11;
}

impl Element for i64 {
    /// What NumPy calls int64 is `long` where that is as long, else `long long`.
    const NUMBER: u8 = if size_of::<std::ffi::c_long>() == 8 { 7 } else { 9 };
}

/// An array over an arena buffer; None where the dtype is none that crosses without pickling.
pub fn empty_over<'py>(
    buffer: Bound<'py, ArenaBuffer>,
    number: u8,
    mut shape: Vec<npy_intp>,
) -> PyResult<Bound<'py, PyAny>> {
    let data = buffer.get().block.as_mut_ptr();
    make(buffer.py(), number, false, &mut shape, Some((data, buffer.into_any())))
}
