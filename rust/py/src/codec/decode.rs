//! Decodes received items. The received bytes are not trusted, so every length is checked before use.

use std::cell::Cell;
use std::sync::Arc;

use numpy::npyffi::npy_intp;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use torchdata_core::link::consumer::Buffer;

use super::array::{self, MOST_DIMENSIONS};
use super::dlpack::{Memory, own_memory, tensor_over};
use super::dtype::Dtype;
use super::helpers::helpers;
use super::source::LONG_COPY;
use super::tensor::{self, Description};
use super::{Tag, malformed, numbers};
use crate::buffers::LeasedBuffer;
use crate::errors;

/// Decodes an item. If `may_lease` is true, the item's arrays refer to the shared memory of `buffers`.
pub fn decode<'py>(
    py: Python<'py>,
    payload: &[u8],
    buffers: &[Buffer],
    may_lease: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let mut decoder = Decoder { py, rest: payload, buffers, may_lease, kept: Vec::new() };
    let item = decoder.item(0)?;
    if decoder.rest.is_empty() { Ok(item) } else { Err(malformed()) }
}

/// The maximum nesting depth of a received item, which exceeds the depth of all encoded items.
const DEEPEST: usize = 128;

struct Decoder<'py, 'a> {
    py: Python<'py>,
    rest: &'a [u8],
    buffers: &'a [Buffer],
    may_lease: bool,
    /// Objects that later parts of the item may reference by their index in this list.
    kept: Vec<Bound<'py, PyAny>>,
}

const MOST_KEPT: usize = 4 << 20;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

#[derive(Clone, Copy)]
enum Bulk<'a> {
    Inline(&'a [u8]),
    Buffer(&'a Buffer),
}

impl Bulk<'_> {
    /// Returns the address and the length of the bytes in `self`. Callers must copy the bytes before using them,
    /// because shared memory may change.
    fn location(&self) -> (*const u8, usize) {
        match self {
            Bulk::Inline(bytes) => (bytes.as_ptr(), bytes.len()),
            Bulk::Buffer(Buffer::Owned(bytes)) => (bytes.as_ptr(), bytes.len()),
            Bulk::Buffer(Buffer::Leased(lease)) => (lease.as_mut_ptr(), lease.len()),
        }
    }

    fn to_str<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let string = match self {
            Bulk::Inline(bytes) => PyString::from_bytes(py, bytes),
            Bulk::Buffer(Buffer::Owned(bytes)) => PyString::from_bytes(py, bytes),
            Bulk::Buffer(Buffer::Leased(lease)) => {
                let mut scratch = SCRATCH.take();
                scratch.clear();
                lease.append_to(&mut scratch).map_err(errors::memory)?;
                let string = PyString::from_bytes(py, &scratch);
                if scratch.capacity() <= MOST_KEPT {
                    SCRATCH.set(scratch);
                }
                string
            }
        };
        string.map_err(|_| malformed())
    }

    fn to_bytes<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (data, len) = self.location();
        // SAFETY: `self` keeps the `len` bytes at `data` valid. PyBytes_FromStringAndSize copies the bytes into a new
        // object.
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(data.cast(), len as ffi::Py_ssize_t)) }
    }

    fn to_bytearray<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (data, len) = self.location();
        // SAFETY: `self` keeps the `len` bytes at `data` valid. PyByteArray_FromStringAndSize copies the bytes into a
        // new object.
        unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyByteArray_FromStringAndSize(data.cast(), len as ffi::Py_ssize_t))
        }
    }
}

impl<'py, 'a> Decoder<'py, 'a> {
    fn take(&mut self, len: usize) -> PyResult<&'a [u8]> {
        self.rest.split_off(..len).ok_or_else(malformed)
    }

    fn byte(&mut self) -> PyResult<u8> {
        Ok(self.take(1)?[0])
    }

    fn word(&mut self) -> PyResult<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes were taken")))
    }

    fn length(&mut self) -> PyResult<usize> {
        usize::try_from(self.word()?).map_err(|_| malformed())
    }

    /// Reads the number of members of a container. A number above the number of remaining bytes is an error, because
    /// each member takes at least one byte.
    fn count(&mut self) -> PyResult<usize> {
        self.length().and_then(|count| if count <= self.rest.len() { Ok(count) } else { Err(malformed()) })
    }

    fn bulk(&mut self) -> PyResult<Bulk<'a>> {
        match self.byte()? {
            0 => {
                let len = self.length()?;
                self.take(len).map(Bulk::Inline)
            }
            1 => {
                let index = self.length()?;
                self.buffers.get(index).map(Bulk::Buffer).ok_or_else(malformed)
            }
            _ => Err(malformed()),
        }
    }

    fn item(&mut self, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        if depth > DEEPEST {
            return Err(malformed());
        }
        let py = self.py;
        let tag = Tag::from_byte(self.byte()?).ok_or_else(malformed)?;
        match tag {
            Tag::None => Ok(py.None().into_bound(py)),
            Tag::False => Ok(false.into_pyobject(py)?.to_owned().into_any()),
            Tag::True => Ok(true.into_pyobject(py)?.to_owned().into_any()),
            Tag::Int => {
                let value = self.word()? as i64;
                // SAFETY: PyLong_FromLongLong returns a new int, or NULL with a MemoryError set.
                unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyLong_FromLongLong(value)) }
            }
            // SAFETY: PyLong_FromUnsignedLongLong returns a new int, or NULL with an exception set.
            Tag::Unsigned => unsafe {
                Bound::from_owned_ptr_or_err(py, ffi::PyLong_FromUnsignedLongLong(self.word()?))
            },
            Tag::Numbers => self.numbers(),
            Tag::Float => Ok(f64::from_bits(self.word()?).into_pyobject(py)?.into_any()),
            Tag::Str => Ok(self.bulk()?.to_str(py)?.into_any()),
            Tag::Bytes => self.bulk()?.to_bytes(py),
            Tag::Tuple => {
                let members = self.members(depth)?;
                Ok(PyTuple::new(py, members)?.into_any())
            }
            Tag::List => {
                let members = self.members(depth)?;
                Ok(PyList::new(py, members)?.into_any())
            }
            Tag::DataChunk => {
                let members = PyList::new(py, self.members(depth)?)?;
                helpers(py)?.data_chunk.bind(py).call1((members,))
            }
            Tag::Dict => {
                let count = self.count()?;
                let dict = PyDict::new(py);
                for _ in 0..count {
                    let key = self.item(depth + 1)?;
                    dict.set_item(key, self.item(depth + 1)?)?;
                }
                Ok(dict.into_any())
            }
            Tag::Array => self.array(),
            Tag::Scalar => {
                let dtype = Dtype::read(|len| self.take(len))?;
                let len = usize::from(self.byte()?);
                array::make_scalar(py, dtype, self.take(len)?)
            }
            Tag::Tensor => self.tensor(),
            Tag::Pickle => {
                let pickled = self.bulk()?;
                let count = self.count()?;
                let mut buffers = Vec::with_capacity(count);
                for _ in 0..count {
                    let bulk = self.bulk()?;
                    buffers.push(self.writable(bulk)?);
                }
                helpers(py)?.loads.bind(py).call1((pickled.to_bytes(py)?, PyList::new(py, buffers)?))
            }
            Tag::Kept => {
                let item = self.item(depth + 1)?;
                self.kept.push(item.clone());
                Ok(item)
            }
            Tag::Again => {
                let number = self.length()?;
                self.kept.get(number).cloned().ok_or_else(malformed)
            }
        }
    }

    fn numbers(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let container = Tag::from_byte(self.byte()?).ok_or_else(malformed)?;
        let element = Tag::from_byte(self.byte()?).ok_or_else(malformed)?;
        let len = self.length()?;
        let bytes = self.take(numbers::block_bytes(element, len)?)?;
        let sequence = numbers::read_block(self.py, container == Tag::Tuple, element, bytes)?;
        match container {
            Tag::Tuple | Tag::List => Ok(sequence),
            Tag::DataChunk => helpers(self.py)?.data_chunk.bind(self.py).call1((sequence,)),
            _ => Err(malformed()),
        }
    }

    fn members(&mut self, depth: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let count = self.count()?;
        (0..count).map(|_| self.item(depth + 1)).collect()
    }

    fn writable(&self, bulk: Bulk<'_>) -> PyResult<Bound<'py, PyAny>> {
        match bulk {
            Bulk::Buffer(Buffer::Leased(lease)) if self.may_lease => {
                Ok(Bound::new(self.py, LeasedBuffer(Arc::clone(lease)))?.into_any())
            }
            bulk => bulk.to_bytearray(self.py),
        }
    }

    fn array(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let dtype = Dtype::read(|len| self.take(len))?;
        let dimensions = usize::from(self.byte()?);
        if dimensions > MOST_DIMENSIONS {
            return Err(malformed());
        }
        let order = array::read_order(dimensions, |len| self.take(len))?;
        let mut shape = Vec::with_capacity(dimensions);
        for _ in 0..dimensions {
            shape.push(npy_intp::try_from(self.length()?).map_err(|_| malformed())?);
        }
        let py = self.py;
        match self.bulk()? {
            Bulk::Buffer(Buffer::Leased(lease)) if self.may_lease => {
                let (data, len) = (lease.as_mut_ptr(), lease.len());
                let base = Bound::new(py, LeasedBuffer(Arc::clone(lease)))?.into_any();
                array::make(py, dtype, &order, &mut shape, len, Some((data, base)))
            }
            bulk => {
                let (from, len) = bulk.location();
                let array = array::make(py, dtype, &order, &mut shape, len, None)?;
                copy(py, from, len, array::data_of(&array));
                Ok(array)
            }
        }
    }

    fn tensor(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let Description { element, extents, len } = tensor::read(|len| self.take(len))?;
        let bulk = self.bulk()?;
        let (from, there) = bulk.location();
        if there != len {
            return Err(malformed());
        }
        let memory = match bulk {
            Bulk::Buffer(Buffer::Leased(lease)) if self.may_lease => Memory::Leased(Arc::clone(lease)),
            _ => {
                let mut own = own_memory(len)?;
                copy(self.py, from, len, own.as_mut_ptr().cast());
                Memory::Own(own)
            }
        };
        tensor_over(self.py, element, extents, memory)
    }
}

fn copy(py: Python<'_>, from: *const u8, len: usize, to: *mut u8) {
    let (source, to) = (from as usize, to as usize);
    // SAFETY: callers pass `len` readable bytes at `from`, and `len` bytes of new memory at `to`.
    let copy = move || unsafe { std::ptr::copy_nonoverlapping(source as *const u8, to as *mut u8, len) };
    if len >= LONG_COPY { py.detach(copy) } else { copy() }
}
