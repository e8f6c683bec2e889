//! Gives Python's buffer protocol access to shared memory, and creates `bytes` objects in mapped memory.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::{mem, ptr};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use torchdata_core::link::arena::Block;
use torchdata_core::link::lease::Lease;

/// # Safety
///
/// The interpreter created `view`, and the memory is valid as long as `owner` exists.
unsafe fn fill_buffer(
    owner: *mut ffi::PyObject,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    data: *mut u8,
    len: usize,
) -> PyResult<()> {
    let len = ffi::Py_ssize_t::try_from(len).map_err(|_| PyBufferError::new_err("the buffer is too long"))?;
    // SAFETY: the caller guarantees the conditions that this function documents. PyBuffer_FillInfo takes its own
    // reference to `owner`.
    let done = unsafe { ffi::PyBuffer_FillInfo(view, owner, data.cast::<c_void>(), len, 0, flags) };
    if done == 0 { Ok(()) } else { Err(Python::attach(PyErr::fetch)) }
}

/// The memory of a received array: a lease on a block of the sender's arena.
#[pyclass(frozen, module = "torchdata._native")]
pub struct LeasedBuffer(pub Arc<Lease>);

#[pymethods]
impl LeasedBuffer {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let lease = &slf.get().0;
        // SAFETY: the block is valid for `len` bytes while the lease exists, and this object owns the lease.
        unsafe { fill_buffer(slf.as_ptr(), view, flags, lease.as_mut_ptr(), lease.len()) }
    }
}

/// The memory of an array that `torchdata.empty` has created, in a block of this process's arena. If only an item
/// refers to the array, the block is sent with this item without copying.
#[pyclass(frozen, module = "torchdata._native")]
pub struct ArenaBuffer {
    pub block: Arc<Block>,
}

#[pymethods]
impl ArenaBuffer {
    fn __len__(&self) -> usize {
        self.block.len()
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let block = &slf.get().block;
        // SAFETY: the block is valid for `len` bytes as long as this object, which owns the block.
        unsafe { fill_buffer(slf.as_ptr(), view, flags, block.as_mut_ptr(), block.len()) }
    }
}

/// Creates a `bytes` object inside a buffer, without copying the contents. `memory` is a writable buffer with `room`
/// bytes for the header of the object, then the contents, then a zero. If the buffer is a private mapping, writing the
/// header copies only its page. The object and the buffer are never freed.
#[pyfunction]
pub fn bytes_in_place<'py>(memory: &Bound<'py, PyAny>, room: usize) -> PyResult<Bound<'py, PyAny>> {
    let buffer = PyBuffer::<u8>::get(memory)?;
    let refusal = || PyBufferError::new_err("the buffer has no room for the header and the final zero of the object");
    let len = buffer.len_bytes().checked_sub(room).and_then(|rest| rest.checked_sub(1)).ok_or_else(refusal)?;
    // The header of a `bytes` object depends on the release of Python, so it is copied from a model, which is an object
    // of equal length. The contents of this temporary object are never touched, and take no memory. SAFETY: without
    // data, the function creates an object with arbitrary contents. A buffer has at most isize::MAX bytes.
    let model = unsafe {
        let model = ffi::PyBytes_FromStringAndSize(ptr::null(), len as ffi::Py_ssize_t);
        Bound::from_owned_ptr_or_err(memory.py(), model)?
    };
    // SAFETY: the model is a `bytes` object, and its contents follow its header.
    let header = unsafe { ffi::PyBytes_AsString(model.as_ptr()) as usize - model.as_ptr() as usize };
    let contents = buffer.buf_ptr().cast::<u8>().wrapping_add(room);
    let object = contents.wrapping_sub(header).cast::<ffi::PyObject>();
    // SAFETY: the buffer continues after the contents.
    let ends = buffer.is_c_contiguous() && unsafe { *contents.add(len) } == 0;
    if !ends || buffer.readonly() || header > room || !object.is_aligned() {
        return Err(refusal());
    }
    mem::forget(buffer); // the memory stays mapped
    // SAFETY: `header` bytes before the contents are inside the writable buffer. These bytes become the header of an
    // object with one reference, like `model`.
    let object = unsafe {
        ptr::copy_nonoverlapping(model.as_ptr().cast::<u8>(), object.cast::<u8>(), header);
        Bound::from_owned_ptr(memory.py(), object)
    };
    mem::forget(object.clone()); // the object is never freed
    Ok(object)
}
