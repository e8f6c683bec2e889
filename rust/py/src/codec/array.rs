//! Encodes and creates NumPy arrays and scalars through NumPy's C API.

use std::sync::Arc;

use numpy::npyffi::{NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_F_CONTIGUOUS, NPY_ARRAY_WRITEABLE};
use numpy::npyffi::{PyArrayObject, npy_intp};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use torchdata_core::link::arena::Block;
use torchdata_core::strided::{Strided, memory_order};

use super::dtype::{Dtype, LARGEST};
use super::malformed;
use crate::buffers::ArenaBuffer;
use crate::numpy_api::numpy;

pub const MOST_DIMENSIONS: usize = 64;

/// The axes of an array from outermost to innermost in memory, or an empty slice if the axes are in ascending order.
type Order = [usize];

pub fn write_order(order: &Order, payload: &mut Vec<u8>) {
    payload.push(u8::from(!order.is_empty()));
    payload.extend(order.iter().map(|&axis| axis as u8));
}

/// Reads the order of axes that `write_order` wrote. `take(n)` returns the next n bytes of the encoded item.
pub fn read_order<'a>(dimensions: usize, mut take: impl FnMut(usize) -> PyResult<&'a [u8]>) -> PyResult<Vec<usize>> {
    if take(1)?[0] == 0 {
        return Ok(Vec::new());
    }
    let axes: Vec<usize> = take(dimensions)?.iter().map(|&axis| axis.into()).collect();
    let all = (0..dimensions).all(|axis| axes.contains(&axis));
    all.then_some(axes).ok_or_else(malformed)
}

pub struct ArrayParts<'a> {
    pub dtype: Dtype,
    pub order: Vec<usize>,
    pub shape: &'a [npy_intp],
    pub data: *mut u8,
    pub len: usize,
    pub strided: Option<Strided>,
}

fn fields<'a>(array: &'a Bound<'_, PyAny>) -> &'a numpy::npyffi::PyArrayObject_fields {
    // SAFETY: callers pass objects of exactly the type `ndarray`. The reference borrows `array`.
    unsafe { &(*array.as_ptr().cast::<PyArrayObject>()).fields }
}

fn bytes_of(item: usize, shape: &[npy_intp]) -> Option<usize> {
    shape.iter().try_fold(item, |len, &dim| len.checked_mul(usize::try_from(dim).ok()?))
}

fn extents<'a>(array: &'a Bound<'_, PyAny>) -> (&'a [npy_intp], &'a [npy_intp]) {
    let fields = fields(array);
    let dimensions = fields.nd as usize;
    if dimensions == 0 {
        return (&[], &[]); // NumPy's pointers may be null if an array has no dimensions
    }
    // SAFETY: NumPy allocates one length and one stride for each of an array's `nd` dimensions.
    unsafe {
        let shape = std::slice::from_raw_parts(fields.dimensions, dimensions);
        (shape, std::slice::from_raw_parts(fields.strides, dimensions))
    }
}

/// Returns the properties of an array that the encoder sends, or None if the array must be pickled.
pub fn parts<'a>(array: &'a Bound<'_, PyAny>) -> Option<ArrayParts<'a>> {
    let fields = fields(array);
    let (dtype, item) = Dtype::of(array.py(), fields.descr)?;
    let (shape, strides) = extents(array);
    let len = bytes_of(item, shape)?;
    let (order, strided) = if fields.flags & NPY_ARRAY_C_CONTIGUOUS != 0 {
        (Vec::new(), None)
    } else if fields.flags & NPY_ARRAY_F_CONTIGUOUS != 0 {
        ((0..shape.len()).rev().collect(), None)
    } else {
        let sizes: Vec<usize> = shape.iter().map(|&dim| dim as usize).collect();
        let axes = memory_order(&sizes, strides);
        let strided = Strided::new(item, axes.iter().map(|&axis| (shape[axis] as usize, strides[axis])))?;
        let order = if axes.is_sorted() { Vec::new() } else { axes };
        (order, Some(strided).filter(|strided| !strided.is_dense()))
    };
    Some(ArrayParts { dtype, order, shape, data: fields.data.cast(), len, strided })
}

/// Returns the shared memory block of an array from `torchdata.empty`, so that the block can be sent without copying.
/// Returns None if the array covers only a part of the block, or if other objects refer to the block.
///
/// The caller ensures that only the item that is being sent refers to the array.
pub fn sole_block(array: &Bound<'_, PyAny>, parts: &ArrayParts<'_>) -> Option<Arc<Block>> {
    let mut object = array.as_ptr();
    // SAFETY: the GIL is held, and the loop only reads objects that `array` keeps alive. The loop accesses array fields
    // only if the type of the object is exactly `ndarray`.
    unsafe {
        let class = ffi::Py_TYPE(object);
        while ffi::Py_TYPE(object) == class {
            let fields = &(*object.cast::<PyArrayObject>()).fields;
            object = fields.base;
            if object.is_null() || ffi::Py_REFCNT(object) != 1 || !fields.weakreflist.is_null() {
                return None;
            }
        }
    }
    // SAFETY: `object` exists, because the array that the loop above has visited last keeps its base `object` alive.
    let base = unsafe { Bound::from_borrowed_ptr(array.py(), object) };
    let block = &base.cast::<ArenaBuffer>().ok()?.get().block;
    let whole = parts.strided.is_none() && block.as_mut_ptr() == parts.data && block.len() == parts.len;
    whole.then(|| Arc::clone(block))
}

/// Returns the block of shared memory that consists of the `len` bytes at `data`, if any.
///
/// The caller ensures that only the item that is being sent refers to the array and to its tensor.
pub fn block_under(array: &Bound<'_, PyAny>, data: *const u8, len: usize) -> Option<Arc<Block>> {
    let base = array.getattr("base").ok()?;
    // SAFETY: `Py_REFCNT` only reads the reference count of an existing object. The array and the variable `base` hold
    // one reference each, so more than two references mean that other code uses the block.
    if unsafe { ffi::Py_REFCNT(base.as_ptr()) } > 2 {
        return None;
    }
    let block = &base.cast::<ArenaBuffer>().ok()?.get().block;
    (block.as_mut_ptr().cast_const() == data && block.len() == len).then(|| Arc::clone(block))
}

/// Creates an array. `over` contains the address of the array's memory and the owner of this memory. If `over` is None,
/// NumPy allocates the memory.
pub fn make<'py>(
    py: Python<'py>,
    dtype: Dtype,
    order: &Order,
    shape: &mut [npy_intp],
    len: usize,
    over: Option<(*mut u8, Bound<'py, PyAny>)>,
) -> PyResult<Bound<'py, PyAny>> {
    let (descr, item) = dtype.descriptor(py)?;
    if shape.len() > MOST_DIMENSIONS {
        return Err(malformed());
    }
    if bytes_of(item, shape) != Some(len) {
        return Err(malformed());
    }
    let mut strides = [0 as npy_intp; MOST_DIMENSIONS];
    let mut next = item as npy_intp;
    for &axis in order.iter().rev() {
        strides[axis] = next;
        next = next.checked_mul(shape[axis]).ok_or_else(malformed)?;
    }
    let strides = if order.is_empty() { std::ptr::null_mut() } else { strides.as_mut_ptr() };
    let (data, flags) = match &over {
        Some((data, _)) => (*data, NPY_ARRAY_WRITEABLE),
        None => (std::ptr::null_mut(), 0),
    };
    let numpy = numpy(py)?;
    // SAFETY: callers pass a valid dtype, shape and strides. If `data` is not null, the array fits into the memory at
    // `data`, and keeps this memory alive through its base.
    let array = unsafe { numpy.array(descr, shape, strides, data.cast(), flags)? };
    if let Some((_, base)) = over {
        numpy.set_base(&array, base)?;
    }
    Ok(array)
}

pub fn data_of(array: &Bound<'_, PyAny>) -> *mut u8 {
    fields(array).data.cast()
}

pub fn scalar_parts(scalar: &Bound<'_, PyAny>) -> PyResult<Option<(Dtype, Vec<u8>)>> {
    let py = scalar.py();
    let numpy = numpy(py)?;
    // SAFETY: callers pass existing NumPy scalars. A value of any dtype that `Dtype::of` accepts fits into the buffer.
    unsafe {
        let descr = numpy.dtype_of(scalar)?;
        let Some((dtype, size)) = Dtype::of(py, descr.as_ptr().cast()) else { return Ok(None) };
        let mut bytes = [0_u128; LARGEST / 16];
        numpy.value_of(scalar, bytes.as_mut_ptr().cast());
        let bytes = std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), size).to_vec();
        Ok(Some((dtype, bytes)))
    }
}

pub fn make_scalar<'py>(py: Python<'py>, dtype: Dtype, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let (descr, size) = dtype.descriptor(py)?;
    if size != bytes.len() {
        return Err(malformed());
    }
    let mut aligned = [0_u128; LARGEST / 16];
    // SAFETY: the bytes of a value fit into `aligned`, and `aligned` has a sufficient alignment for all dtypes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), aligned.as_mut_ptr().cast(), bytes.len());
        numpy(py)?.scalar(&descr, aligned.as_mut_ptr().cast())
    }
}

pub fn array_of<'py, T: Element>(py: Python<'py>, elements: &[T]) -> PyResult<Bound<'py, PyAny>> {
    let count = npy_intp::try_from(elements.len()).map_err(|_| PyValueError::new_err("the array is too long"))?;
    let array = make(py, Dtype::number(T::NUMBER), &[], &mut [count], size_of_val(elements), None)?;
    // SAFETY: the new array has exactly the length of `elements`, and no other code refers to the array yet.
    unsafe { std::ptr::copy_nonoverlapping(elements.as_ptr(), data_of(&array).cast(), elements.len()) };
    Ok(array)
}

pub trait Element: Copy {
    const NUMBER: u8;
}

impl Element for f32 {
    const NUMBER: u8 = 11;
}

impl Element for i32 {
    const NUMBER: u8 = 5;
}

impl Element for i64 {
    /// NumPy's type number for int64, which is the number of C's `long` if `long` has 64 bits, and otherwise the number
    /// of `long long`.
    const NUMBER: u8 = if size_of::<std::ffi::c_long>() == 8 { 7 } else { 9 };
}

pub fn empty_over<'py>(
    buffer: Bound<'py, ArenaBuffer>,
    dtype: Dtype,
    mut shape: Vec<npy_intp>,
) -> PyResult<Bound<'py, PyAny>> {
    let (data, len) = (buffer.get().block.as_mut_ptr(), buffer.get().block.len());
    make(buffer.py(), dtype, &[], &mut shape, len, Some((data, buffer.into_any())))
}
