//! Bytes and buffers to items. The bytes are private, but not trusted: every length is checked.

use numpy::npyffi::npy_intp;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyString, PyTuple};
use torchdata_core::consumer::Buffer;

use super::array;
use super::helpers::helpers;
use super::{OUT_OF_BAND, Tag};
use crate::shared::LeasedBuffer;

fn malformed() -> PyErr {
    PyRuntimeError::new_err("an item arrived malformed: its sender's memory is corrupted; start a new loader")
}

/// Builds the item from its inline part and its large buffers.
///
/// `may_lease` says whether arrays may stay where they are; otherwise they are copied out.
pub fn decode<'py>(
    py: Python<'py>,
    payload: &[u8],
    buffers: &[Buffer],
    may_lease: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let mut decoder = Decoder { py, rest: payload, buffers, may_lease };
    let item = decoder.item(0)?;
    if decoder.rest.is_empty() { Ok(item) } else { Err(malformed()) }
}

/// Deepest nesting that is followed; the encoder stays well below.
const DEEPEST: usize = 128;

struct Decoder<'py, 'a> {
    py: Python<'py>,
    rest: &'a [u8],
    buffers: &'a [Buffer],
    may_lease: bool,
}

/// A run of bytes, inline or out of band.
enum Bulk<'a> {
    Inline(&'a [u8]),
    Buffer(Buffer),
}

impl Bulk<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Bulk::Inline(bytes) => bytes,
            Bulk::Buffer(buffer) => buffer.bytes(),
        }
    }
}

impl<'py, 'a> Decoder<'py, 'a> {
    fn take(&mut self, len: usize) -> PyResult<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(malformed)?;
        self.rest = rest;
        Ok(taken)
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

    /// A count of members, each of which takes at least one byte.
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
                self.buffers.get(index).cloned().map(Bulk::Buffer).ok_or_else(malformed)
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
                // SAFETY: makes a new int or fails with MemoryError set.
                unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyLong_FromLongLong(value)) }
            }
            Tag::BigInt => {
                let len = self.length()?;
                let bytes = PyBytes::new(py, self.take(len)?);
                let signed = PyDict::new(py);
                signed.set_item("signed", true)?;
                py.get_type::<pyo3::types::PyInt>().call_method("from_bytes", (bytes, "little"), Some(&signed))
            }
            Tag::Float => Ok(f64::from_bits(self.word()?).into_pyobject(py)?.into_any()),
            Tag::Str => {
                let bulk = self.bulk()?;
                Ok(PyString::from_bytes(py, bulk.bytes()).map_err(|_| malformed())?.into_any())
            }
            Tag::Bytes => Ok(PyBytes::new(py, self.bulk()?.bytes()).into_any()),
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
                let number = self.byte()?;
                let len = usize::from(self.byte()?);
                array::make_scalar(py, number, self.take(len)?)
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
                let pickled = PyBytes::new(py, pickled.bytes());
                helpers(py)?.loads.bind(py).call1((pickled, PyList::new(py, buffers)?))
            }
        }
    }

    fn members(&mut self, depth: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let count = self.count()?;
        (0..count).map(|_| self.item(depth + 1)).collect()
    }

    /// An object with a writable buffer over a run of bytes: the lease where it may be kept, else a copy.
    fn writable(&self, bulk: Bulk<'_>) -> PyResult<Bound<'py, PyAny>> {
        match bulk {
            Bulk::Buffer(Buffer::Leased(lease)) if self.may_lease => {
                Ok(Bound::new(self.py, LeasedBuffer(lease))?.into_any())
            }
            bulk => Ok(PyByteArray::new(self.py, bulk.bytes()).into_any()),
        }
    }

    fn array(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let number = self.byte()?;
        let fortran = self.byte()? != 0;
        let dimensions = usize::from(self.byte()?);
        let item_size = array::plain_item_size(i32::from(number)).ok_or_else(malformed)?;
        let mut len = item_size;
        let mut shape = Vec::with_capacity(dimensions);
        for _ in 0..dimensions {
            let dim = self.length()?;
            len = len.checked_mul(dim).ok_or_else(malformed)?;
            shape.push(npy_intp::try_from(dim).map_err(|_| malformed())?);
        }
        let bulk = self.bulk()?;
        if bulk.bytes().len() != len {
            return Err(malformed());
        }
        let py = self.py;
        match bulk {
            Bulk::Buffer(Buffer::Leased(lease)) if self.may_lease => {
                let data = lease.as_mut_ptr();
                let base = Bound::new(py, LeasedBuffer(lease))?.into_any();
                array::make(py, number, fortran, &mut shape, Some((data, base)))
            }
            bulk => {
                let array = array::make(py, number, fortran, &mut shape, None)?;
                let (from, to) = (bulk.bytes(), array::data_of(&array));
                copy(py, from, to);
                Ok(array)
            }
        }
    }

    fn tensor(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let len = usize::from(self.byte()?);
        let dtype = std::str::from_utf8(self.take(len)?).map_err(|_| malformed())?;
        let grad = self.byte()? != 0;
        let dimensions = usize::from(self.byte()?);
        let shape = (0..dimensions).map(|_| self.length()).collect::<PyResult<Vec<usize>>>()?;
        let bulk = self.bulk()?;
        let buffer = self.writable(bulk)?;
        helpers(self.py)?.tensor_over.bind(self.py).call1((dtype, PyTuple::new(self.py, shape)?, grad, buffer))
    }
}

/// Copies into fresh memory of Python's, without the GIL where that takes long.
fn copy(py: Python<'_>, from: &[u8], to: *mut u8) {
    let (source, len, to) = (from.as_ptr() as usize, from.len(), to as usize);
    // SAFETY: `to` was just allocated with room for `from`, nobody else knows it yet, and both outlive the call.
    let copy = move || unsafe { std::ptr::copy_nonoverlapping(source as *const u8, to as *mut u8, len) };
    if len >= 16 * OUT_OF_BAND { py.detach(copy) } else { copy() }
}
