//! Describes and copies the large buffers of an item, such as array elements.

use std::sync::Arc;

use pyo3::prelude::*;
use torchdata_core::link::arena::Block;
use torchdata_core::strided::Strided;

pub const LONG_COPY: usize = 128 << 10;

pub enum OutBuffer {
    Memory(Source),
    Block(Arc<Block>),
}

/// The Python object that keeps the memory of a `Source` alive, or None if the caller keeps the memory alive.
type Owner<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

pub struct Source {
    /// The address is a number, because Rust does not allow sending pointers to other threads.
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

    /// Copies the buffer to `to`. The GIL is released during a long copy.
    ///
    /// # Safety
    /// `to` has room for `len` bytes and does not overlap the source.
    pub unsafe fn copy(&self, py: Python<'_>, to: *mut u8) {
        let (address, len, to) = (self.address, self.len, to as usize);
        let strided = self.strided.as_deref();
        let copy = move || {
            let (from, to) = (address as *const u8, to as *mut u8);
            // SAFETY: the owner keeps the memory at `from` alive. The caller guarantees `len` bytes of room at `to`.
            unsafe {
                match strided {
                    Some(strided) => strided.copy(from, to),
                    None => std::ptr::copy_nonoverlapping(from, to, len),
                }
            }
        };
        if len >= LONG_COPY { py.detach(copy) } else { copy() }
    }

    /// Returns the address of memory that contains the elements without gaps. Elements with gaps are copied into a new
    /// `bytes` object.
    pub fn make_dense(&mut self, py: Python<'_>) -> PyResult<*const u8> {
        if self.strided.is_none() {
            return Ok(self.address as *const u8);
        }
        let len = isize::try_from(self.len)?;
        // SAFETY: PyBytes_FromStringAndSize returns NULL with an exception set, or a new object. The contents are
        // written before other code can access the object.
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
