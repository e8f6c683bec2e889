//! Gives Python access to shared memory through the buffer protocol, and creates `bytes` objects in mapped memory.

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
/// The interpreter created `view`. The memory `data` consists of `len` bytes, which stay valid as long as `owner`
/// exists.
unsafe fn fill_buffer(
    owner: *mut ffi::PyObject,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    data: *mut u8,
    len: usize,
) -> PyResult<()> {
    let len = ffi::Py_ssize_t::try_from(len).map_err(|_| PyBufferError::new_err("the buffer is too long"))?;
    // SAFETY: the caller passes a `view` of the interpreter, and memory that is valid as long as `owner` exists.
    // PyBuffer_FillInfo stores a new reference to `owner` in the view.
    let done = unsafe { ffi::PyBuffer_FillInfo(view, owner, data.cast::<c_void>(), len, 0, flags) };
    if done == 0 { Ok(()) } else { Err(Python::attach(PyErr::fetch)) }
}

/// Owns the memory of a received array, which is a block in the sending process's arena.
#[pyclass(frozen, module = "torchdata._native")]
pub struct LeasedBuffer(pub Arc<Lease>);

#[pymethods]
impl LeasedBuffer {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let lease = &slf.get().0;
        // SAFETY: the lease keeps the `len` bytes of the block valid, and this object owns the lease.
        unsafe { fill_buffer(slf.as_ptr(), view, flags, lease.as_mut_ptr(), lease.len()) }
    }
}

/// Owns the memory of an array from `torchdata.empty`, which is a block in this process's arena.
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
        // SAFETY: this object owns the block, which keeps the `len` bytes of the block valid.
        unsafe { fill_buffer(slf.as_ptr(), view, flags, block.as_mut_ptr(), block.len()) }
    }
}

/// Creates a `bytes` object inside the buffer `memory` without copying the contents. The `bytes` object and the buffer
/// are never freed.
///
/// The writable buffer begins with `room` bytes for the object's header, followed by the contents and a zero byte.
#[pyfunction]
pub fn bytes_in_place<'py>(memory: &Bound<'py, PyAny>, room: usize) -> PyResult<Bound<'py, PyAny>> {
    let buffer = PyBuffer::<u8>::get(memory)?;
    let refusal = || PyBufferError::new_err("the buffer has no space for the header and the final zero of the object");
    let len = buffer.len_bytes().checked_sub(room).and_then(|rest| rest.checked_sub(1)).ok_or_else(refusal)?;
    // The header of a `bytes` object differs between releases of Python, so it is copied from `model`, a temporary
    // object of the same length. The contents of `model` are never written, so they use no physical memory.
    // SAFETY: PyBytes_FromStringAndSize leaves the contents of the new object uninitialized if its first argument is
    // NULL. `len` fits into a Py_ssize_t, because a buffer has at most isize::MAX bytes.
    let model = unsafe {
        let model = ffi::PyBytes_FromStringAndSize(ptr::null(), len as ffi::Py_ssize_t);
        Bound::from_owned_ptr_or_err(memory.py(), model)?
    };
    // SAFETY: `model` is a `bytes` object, and the contents of such an object follow its header in memory.
    let header = unsafe { ffi::PyBytes_AsString(model.as_ptr()) as usize - model.as_ptr() as usize };
    let contents = buffer.buf_ptr().cast::<u8>().wrapping_add(room);
    let object = contents.wrapping_sub(header).cast::<ffi::PyObject>();
    // SAFETY: `len` was computed so that one more byte of the buffer follows the contents.
    let ends = buffer.is_c_contiguous() && unsafe { *contents.add(len) } == 0;
    if !ends || buffer.readonly() || header > room || !object.is_aligned() {
        return Err(refusal());
    }
    mem::forget(buffer); // the buffer is never released, so its memory stays mapped
    // SAFETY: the check above ensures that the `header` bytes before the contents are inside the writable buffer. The
    // copied header turns the memory into a `bytes` object with one reference, like `model`.
    let object = unsafe {
        ptr::copy_nonoverlapping(model.as_ptr().cast::<u8>(), object.cast::<u8>(), header);
        Bound::from_owned_ptr(memory.py(), object)
    };
    mem::forget(object.clone()); // the second reference is never released, so the object is never freed
    Ok(object)
}
