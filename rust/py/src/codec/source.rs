//! Copies an item's large buffers, such as array elements.

use std::sync::Arc;

use pyo3::prelude::*;
use torchdata_core::link::arena::Block;
use torchdata_core::strided::Strided;

/// The minimum number of bytes of a copy that releases the GIL.
pub const LONG_COPY: usize = 128 << 10;

pub enum OutBuffer {
    Memory(Source),
    Block(Arc<Block>),
}

/// The object that keeps the memory alive, or None if the caller does so until the memory has been copied.
type Owner<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

pub struct Source {
    /// The memory's address as a number, because pointers cannot be sent to other threads.
    address: usize,
    len: usize,
    strided: Option<Box<Strided>>,
    _owner: Option<Py<PyAny>>,
}

impl Source {
    pub fn dense(data: *const u8, len: usize, owner: Owner<'_, '_>) -> Self {
        Self { address: data as usize, len, strided: None, _owner: owner.map(|owner| owner.clone().unbind()) }
    }

    pub fn strided(data: *const u8, strided: Strided, owner: Owner<'_, '_>) -> Self {
        let len = strided.len();
        Self { strided: Some(Box::new(strided)), ..Self::dense(data, len, owner) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies the bytes. Long copies release the GIL.
    ///
    /// # Safety
    /// `to` has room for `len` bytes and does not overlap the source.
    pub unsafe fn copy(&self, py: Python<'_>, to: *mut u8) {
        let (address, len, to) = (self.address, self.len, to as usize);
        let strided = self.strided.as_deref();
        let copy = move || {
            let (from, to) = (address as *const u8, to as *mut u8);
            // SAFETY: the owner keeps the source's memory alive, and the caller guarantees that `to` is valid.
            unsafe {
                match strided {
                    Some(strided) => strided.copy(from, to),
                    None => std::ptr::copy_nonoverlapping(from, to, len),
                }
            }
        };
        if len >= LONG_COPY { py.detach(copy) } else { copy() }
    }

    /// Returns the address of contiguous elements, after copying elements that have gaps in between.
    pub fn make_dense(&mut self, py: Python<'_>) -> PyResult<*const u8> {
        if self.strided.is_none() {
            return Ok(self.address as *const u8);
        }
        let len = isize::try_from(self.len)?;
        // SAFETY: the call returns NULL with an exception, or new bytes, which are filled before other code sees them.
        unsafe {
            let room = pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), len);
            let object = Bound::from_owned_ptr_or_err(py, room)?;
            let data = pyo3::ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
            self.copy(py, data);
            *self = Self::dense(data, self.len, Some(&object));
            Ok(data)
        }
    }
}
