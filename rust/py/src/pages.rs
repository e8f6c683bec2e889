//! Gives Python objects the memory of a file that several processes map.

use std::os::fd::BorrowedFd;
use std::ptr;

use pyo3::exceptions::{PyBlockingIOError, PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use torchdata_core::process::pages;

/// Replaces pages of this process by equal pages of a sealed memory file, and returns whether they were equal. Raises
/// `BlockingIOError` if another thread is running. Threads that wait for the GIL sleep until this call has returned. See
/// `torchdata_core::process::pages` for what the caller guarantees.
#[pyfunction]
pub fn replace_pages(fd: i32, offset: u64, start: usize, len: usize) -> PyResult<bool> {
    if fd < 0 {
        return Err(PyValueError::new_err("the descriptor is closed"));
    }
    if !pages::others_sleep()? {
        return Err(PyBlockingIOError::new_err("another thread is running"));
    }
    let start = ptr::with_exposed_provenance_mut(start);
    // SAFETY: the descriptor is open during the call. The caller guarantees the conditions for the memory.
    Ok(unsafe { pages::replace_if_equal(BorrowedFd::borrow_raw(fd), offset, start, len) }?)
}

/// Creates a `bytes` object whose contents stay where they are: at `start..start + len` of a writable buffer. The
/// object's header is written before `start`, and a zero after the contents, so that only the header's page is copied
/// if the buffer is a private mapping. The object and the buffer are never freed. Raises `BufferError` if the header
/// does not fit into the `room` bytes before `start`, or if `start` is not aligned for it.
#[pyfunction]
pub fn bytes_in_place(memory: Bound<'_, PyAny>, start: usize, len: usize, room: usize) -> PyResult<Bound<'_, PyAny>> {
    let py = memory.py();
    // The header of a `bytes` object depends on the release of Python, so it is copied from an object with the same
    // length. The contents of this object are never touched, so it takes no memory.
    let size = ffi::Py_ssize_t::try_from(len).map_err(|_| PyBufferError::new_err("the buffer is too long"))?;
    // SAFETY: without data, the function creates an object with arbitrary contents.
    let model = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(ptr::null(), size))? };
    // SAFETY: the model is a bytes object, and its contents follow its header.
    let header = unsafe { ffi::PyBytes_AsString(model.as_ptr()) as usize - model.as_ptr() as usize };
    let mut view = ffi::Py_buffer::new();
    // SAFETY: `view` is valid. If the call fails, Python has set an exception.
    if unsafe { ffi::PyObject_GetBuffer(memory.as_ptr(), &raw mut view, ffi::PyBUF_WRITABLE) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let contents = view.buf.cast::<u8>().wrapping_add(start);
    let is_inside = start >= room && start.checked_add(len).is_some_and(|end| end < view.len as usize);
    let fits = header <= room && (contents as usize - header).is_multiple_of(align_of::<ffi::PyObject>());
    if !(is_inside && fits) {
        // SAFETY: `PyObject_GetBuffer` has filled in the view.
        unsafe { ffi::PyBuffer_Release(&raw mut view) };
        return Err(PyBufferError::new_err("the header of the object does not fit"));
    }
    // The view is not released, so that the memory stays mapped.
    // SAFETY: the range from the header to the zero after the contents is inside the buffer. The header is a valid
    // header of an object with one reference, because the model has one reference. The second reference has no owner, so
    // the object is never freed.
    unsafe {
        *contents.add(len) = 0;
        let object = contents.sub(header);
        ptr::copy_nonoverlapping(model.as_ptr().cast::<u8>(), object, header);
        ffi::Py_INCREF(object.cast());
        Ok(Bound::from_owned_ptr(py, object.cast()))
    }
}
