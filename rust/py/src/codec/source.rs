//! Large buffers of an item on their way out: where they are copied from.

use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use torchdata_core::link::arena::Block;
use torchdata_core::strided::Strided;

/// Bytes from which a copy is made without the GIL.
pub const LONG_COPY: usize = 128 << 10;

/// A large buffer of an item.
pub enum OutBuffer {
    /// Memory of this process, to be copied.
    Memory(Source),
    /// A block of the arena that the item goes out of: nothing to copy.
    Block(Arc<Block>),
}

/// The owner that keeps the memory of a buffer alive.
pub enum Owner {
    /// An object that the memory is a part of.
    Object { _object: Py<PyAny> },
    /// A buffer that an object has lent.
    Buffer { _buffer: PyBuffer<u8> },
    /// The caller, which copies it.
    Caller,
}

impl Owner {
    /// One that keeps an object.
    pub fn of(object: &Bound<'_, PyAny>) -> Self {
        Owner::Object { _object: object.clone().unbind() }
    }
}

/// Memory of this process, kept alive by its owner until it was copied.
pub struct Source {
    /// The first element; a number, so that other threads may be told of it.
    address: usize,
    len: usize,
    /// How the elements lie if they are not one behind the other.
    strided: Option<Box<Strided>>,
    _owner: Owner,
}

impl Source {
    /// `len` bytes from `data` on.
    pub fn dense(data: *const u8, len: usize, owner: Owner) -> Self {
        Self { address: data as usize, len, strided: None, _owner: owner }
    }

    /// Elements that lie as `strided` says, of which the first is at `data`.
    pub fn strided(data: *const u8, strided: Strided, owner: Owner) -> Self {
        Self { address: data as usize, len: strided.len(), strided: Some(Box::new(strided)), _owner: owner }
    }

    /// Bytes that it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies them, without the GIL if that takes long.
    ///
    /// # Safety
    /// `to` has room for `len` bytes, which are no part of the source.
    pub unsafe fn copy(&self, py: Python<'_>, to: *mut u8) {
        let (address, len, to) = (self.address, self.len, to as usize);
        let strided = self.strided.as_deref();
        let copy = move || {
            let (from, to) = (address as *const u8, to as *mut u8);
            // SAFETY: the maker of the source gave it memory that the owner keeps; the caller promises the same of
            // `to`.
            unsafe {
                match strided {
                    Some(strided) => strided.copy(from, to),
                    None => std::ptr::copy_nonoverlapping(from, to, len),
                }
            }
        };
        if len >= LONG_COPY { py.detach(copy) } else { copy() }
    }

    /// The bytes one behind the other, which from now on they are: a copy if they were not so yet.
    pub fn make_dense(&mut self, py: Python<'_>) -> PyResult<*const u8> {
        if self.strided.is_none() {
            return Ok(self.address as *const u8);
        }
        let len = isize::try_from(self.len)?;
        // SAFETY: a new bytes object of that length, filled in before anybody else sees it; NULL with an exception set.
        unsafe {
            let room = pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), len);
            let object = Bound::from_owned_ptr_or_err(py, room)?;
            let data = pyo3::ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
            self.copy(py, data);
            *self = Self::dense(data, self.len, Owner::Object { _object: object.unbind() });
            Ok(data)
        }
    }
}
