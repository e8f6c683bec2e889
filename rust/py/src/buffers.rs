//! Gives Python buffers access to shared memory, for received blocks and for blocks that are being filled.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use torchdata_core::link::arena::Block;
use torchdata_core::link::lease::Lease;

/// Fills in a writable, contiguous view of `len` bytes owned by `owner`.
///
/// # Safety
/// The interpreter created `view`, and the memory is valid as long as `owner` exists.
unsafe fn fill_buffer(
    owner: *mut ffi::PyObject,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    data: *mut u8,
    len: usize,
) -> PyResult<()> {
    let len = ffi::Py_ssize_t::try_from(len).map_err(|_| PyBufferError::new_err("the buffer is too long"))?;
    // SAFETY: guaranteed by the caller. PyBuffer_FillInfo takes its own reference to `owner`.
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

/// The memory of an array that `torchdata.empty` has created, in a block of this process's arena. If nothing except an
/// item refers to the array, the block is sent with the item without copying.
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
