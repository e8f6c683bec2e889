//! Items to bytes and buffers.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use rustc_hash::FxHashSet;
use torchdata_core::arena::{Arena, Block};

use super::array;
use super::helpers::{Kind, helpers, kind_of};
use super::{MOST_BUFFERS, OUT_OF_BAND, Tag};

/// Deeper nesting is left to pickle, which has its own limit.
const DEEPEST: usize = 64;

/// A part of this process' memory: the address of its first byte, and that behind its last one.
type Span = (usize, usize);

/// A large buffer of an item.
pub enum OutBuffer {
    /// Memory of this process, kept alive by the owner until it was copied.
    Memory { address: usize, len: usize, _owner: Owner },
    /// A block of the arena that the item goes out of: nothing to copy.
    Block(Arc<Block>),
}

/// What keeps the memory of a buffer alive.
pub enum Owner {
    Object { _object: Py<PyAny> },
    Buffer { _buffer: PyBuffer<u8> },
}

/// Why the tree walk gave up.
enum Stop {
    /// The item is for pickle as a whole: something appears twice in it (or might, where a member is for pickle and so out
    /// of sight), or it is nested too deeply.
    Whole,
    Error(PyErr),
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Stop::Error(error)
    }
}

/// Turns items into bytes; the vectors are reused from item to item.
#[derive(Default)]
pub struct Encoder {
    /// The inline part of the last item.
    pub payload: Vec<u8>,
    /// The large buffers of the last item.
    pub buffers: Vec<OutBuffer>,
    /// Containers and arrays of the item that something else refers to as well.
    visited: FxHashSet<usize>,
    /// Where the item's tensors lie: the address behind each one's last byte, by that of its first.
    spans: BTreeMap<usize, usize>,
    /// The member that is to be pickled, which may hold what other members hold, too, and where in the payload.
    pickled_member: Option<(usize, Py<PyAny>)>,
}

impl Encoder {
    /// Encodes an item that goes out of `arena` into `self.payload` and `self.buffers`.
    pub fn encode(&mut self, item: &Bound<'_, PyAny>, arena: &Arc<Arena>) -> PyResult<()> {
        self.clear();
        match self.put(item, arena, 0).and_then(|()| self.pickle_member(item.py())) {
            Ok(()) => Ok(()),
            Err(Stop::Error(error)) => Err(error),
            Err(Stop::Whole) => {
                self.clear();
                self.pickle(item).map(drop)
            }
        }
    }

    /// Lets go of the last item.
    pub fn clear(&mut self) {
        self.payload.clear();
        self.buffers.clear();
        self.visited.clear();
        self.spans.clear();
        self.pickled_member = None;
    }

    fn tag(&mut self, tag: Tag) {
        self.payload.push(tag as u8);
    }

    fn length(&mut self, len: usize) {
        self.payload.extend_from_slice(&(len as u64).to_le_bytes());
    }

    /// Notes an object that could appear twice. One that nothing else refers to cannot: every walk below holds one
    /// reference of its own beside the container's.
    fn visit(&mut self, object: &Bound<'_, PyAny>) -> Result<(), Stop> {
        // SAFETY: reads the reference count of a live object.
        if unsafe { ffi::Py_REFCNT(object.as_ptr()) } <= 2 {
            return Ok(());
        }
        let pointer = object.as_ptr() as usize;
        if self.pickled_member.is_none() && self.visited.insert(pointer) { Ok(()) } else { Err(Stop::Whole) }
    }

    /// Notes where a tensor lies. Memory that two tensors of the item share is shared on arrival, too, which only
    /// pickling can do.
    fn visit_span(&mut self, (start, end): Span) -> Result<(), Stop> {
        if start == end {
            return Ok(());
        }
        let overlaps = self.spans.range(..end).next_back().is_some_and(|(_, &before)| before > start);
        self.spans.insert(start, end);
        if overlaps { Err(Stop::Whole) } else { Ok(()) }
    }

    /// Pickles what has no encoding of its own. In an item with more members that is done to one member at most, and only
    /// where nothing in it can lie elsewhere in the item as well.
    fn other(&mut self, item: &Bound<'_, PyAny>, depth: usize) -> Result<(), Stop> {
        if depth == 0 {
            self.pickle(item)?;
            return Ok(());
        }
        if self.pickled_member.is_some() || !self.visited.is_empty() {
            return Err(Stop::Whole);
        }
        self.pickled_member = Some((self.payload.len(), item.clone().unbind()));
        Ok(())
    }

    /// Pickles the member that was put off until it was known that the item need not be pickled as a whole: pickling may
    /// be costly, and objects may count on it that they are pickled once.
    fn pickle_member(&mut self, py: Python<'_>) -> Result<(), Stop> {
        let Some((place, member)) = self.pickled_member.take() else { return Ok(()) };
        let behind = self.payload.split_off(place);
        let spans = self.pickle(member.bind(py))?;
        self.payload.extend_from_slice(&behind);
        spans.into_iter().try_for_each(|span| self.visit_span(span))
    }

    fn put(&mut self, item: &Bound<'_, PyAny>, arena: &Arc<Arena>, depth: usize) -> Result<(), Stop> {
        if depth > DEEPEST {
            return Err(Stop::Whole);
        }
        let object = item.as_ptr();
        // SAFETY: exact type checks and reads of live objects under the GIL.
        unsafe {
            if ffi::PyLong_CheckExact(object) != 0 {
                return self.integer(item);
            }
            if ffi::PyUnicode_CheckExact(object) != 0 {
                return self.string(item);
            }
            if ffi::PyFloat_CheckExact(object) != 0 {
                self.tag(Tag::Float);
                self.payload.extend_from_slice(&ffi::PyFloat_AsDouble(object).to_le_bytes());
                return Ok(());
            }
            if object == ffi::Py_None() {
                self.tag(Tag::None);
                return Ok(());
            }
            if object == ffi::Py_True() || object == ffi::Py_False() {
                self.tag(if object == ffi::Py_True() { Tag::True } else { Tag::False });
                return Ok(());
            }
            if ffi::PyBytes_CheckExact(object) != 0 {
                self.tag(Tag::Bytes);
                let data = ffi::PyBytes_AsString(object).cast::<u8>();
                let len = ffi::PyBytes_Size(object) as usize;
                self.bulk(data, len, || Owner::Object { _object: item.clone().unbind() });
                return Ok(());
            }
        }
        if let Ok(tuple) = item.cast_exact::<PyTuple>() {
            if !tuple.is_empty() {
                self.visit(item)?;
            }
            self.tag(Tag::Tuple);
            self.length(tuple.len());
            return tuple.iter().try_for_each(|member| self.put(&member, arena, depth + 1));
        }
        if let Ok(list) = item.cast_exact::<PyList>() {
            self.visit(item)?;
            return self.sequence(Tag::List, list, arena, depth);
        }
        if let Ok(dict) = item.cast_exact::<PyDict>() {
            self.visit(item)?;
            self.tag(Tag::Dict);
            self.length(dict.len());
            for (key, value) in dict {
                self.put(&key, arena, depth + 1)?;
                self.put(&value, arena, depth + 1)?;
            }
            return Ok(());
        }
        match kind_of(item)? {
            Kind::Array => self.array(item, arena, depth),
            Kind::NumpyScalar => match array::scalar_parts(item)? {
                Some((number, bytes)) => {
                    self.tag(Tag::Scalar);
                    self.payload.push(number);
                    self.payload.push(bytes.len() as u8);
                    self.payload.extend_from_slice(&bytes);
                    Ok(())
                }
                None => self.other(item, depth),
            },
            Kind::Tensor => self.tensor(item),
            Kind::DataChunk => {
                self.visit(item)?;
                // SAFETY: the class derives from list, and its members are read as those of a list.
                let list = unsafe { item.cast_unchecked::<PyList>() };
                self.sequence(Tag::DataChunk, list, arena, depth)
            }
            Kind::Other => self.other(item, depth),
        }
    }

    fn sequence(&mut self, tag: Tag, list: &Bound<'_, PyList>, arena: &Arc<Arena>, depth: usize) -> Result<(), Stop> {
        self.tag(tag);
        let len = list.len();
        self.length(len);
        for index in 0..len {
            self.put(&list.get_item(index)?, arena, depth + 1)?;
        }
        Ok(())
    }

    fn integer(&mut self, item: &Bound<'_, PyAny>) -> Result<(), Stop> {
        let mut overflow = 0;
        // SAFETY: an exact int, checked by the caller; overflow is reported, not raised.
        let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(item.as_ptr(), &mut overflow) };
        if overflow == 0 {
            self.tag(Tag::Int);
            self.payload.extend_from_slice(&value.to_le_bytes());
            return Ok(());
        }
        let py = item.py();
        let bits: usize = item.call_method0("bit_length")?.extract()?;
        let len = bits / 8 + 1;
        let signed = PyDict::new(py);
        signed.set_item("signed", true)?;
        let bytes = item.call_method("to_bytes", (len, "little"), Some(&signed))?;
        self.tag(Tag::BigInt);
        self.length(len);
        self.payload.extend_from_slice(bytes.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes());
        Ok(())
    }

    fn string(&mut self, item: &Bound<'_, PyAny>) -> Result<(), Stop> {
        let mut len = 0;
        // SAFETY: an exact str; the UTF-8 form is cached in the object and lives as long as it does.
        let data = unsafe { ffi::PyUnicode_AsUTF8AndSize(item.as_ptr(), &mut len) };
        if data.is_null() {
            drop(PyErr::take(item.py())); // lone surrogates have no UTF-8 form; pickle knows how to pass them
            self.pickle(item)?;
            return Ok(());
        }
        self.tag(Tag::Str);
        self.bulk(data.cast(), len as usize, || Owner::Object { _object: item.clone().unbind() });
        Ok(())
    }

    fn array(&mut self, item: &Bound<'_, PyAny>, arena: &Arc<Arena>, depth: usize) -> Result<(), Stop> {
        self.visit(item)?;
        let Some(parts) = array::parts(item) else { return self.other(item, depth) };
        self.tag(Tag::Array);
        self.payload.extend_from_slice(&[parts.number, u8::from(parts.fortran), parts.shape.len() as u8]);
        for &dim in parts.shape {
            self.length(dim as usize);
        }
        if parts.len >= OUT_OF_BAND
            && let Some(buffer) = array::arena_buffer(item, parts.data, parts.len)
            && buffer.get().block.is_of(arena)
            && self.buffers.len() < MOST_BUFFERS
            && buffer.get().claim()
        {
            array::freeze(item);
            self.payload.push(1);
            self.length(self.buffers.len());
            self.buffers.push(OutBuffer::Block(Arc::clone(&buffer.get().block)));
            return Ok(());
        }
        self.bulk(parts.data, parts.len, || Owner::Object { _object: item.clone().unbind() });
        Ok(())
    }

    fn tensor(&mut self, item: &Bound<'_, PyAny>) -> Result<(), Stop> {
        self.visit(item)?;
        let py = item.py();
        let (span, parts): (Option<Span>, Bound<'_, PyAny>) =
            helpers(py)?.tensor_parts.bind(py).call1((item,))?.extract()?;
        if let Some(span) = span {
            self.visit_span(span)?;
        }
        if !parts.is_instance_of::<PyTuple>() {
            let spans = self.pickle(&parts)?;
            return if span.is_some() { Ok(()) } else { spans.into_iter().try_for_each(|span| self.visit_span(span)) };
        }
        let (dtype, shape, grad, data, len): (String, Vec<u64>, bool, usize, usize) = parts.extract()?;
        let (Ok(dtype_len), Ok(dimensions)) = (u8::try_from(dtype.len()), u8::try_from(shape.len())) else {
            self.pickle(item)?; // torch has no limit to the number of dimensions
            return Ok(());
        };
        self.tag(Tag::Tensor);
        self.payload.push(dtype_len);
        self.payload.extend_from_slice(dtype.as_bytes());
        self.payload.extend_from_slice(&[u8::from(grad), dimensions]);
        for dim in shape {
            self.length(dim as usize);
        }
        self.bulk(data as *const u8, len, || Owner::Object { _object: item.clone().unbind() });
        Ok(())
    }

    /// Returns where the tensors in `item` lie; the spans do not overlap.
    fn pickle(&mut self, item: &Bound<'_, PyAny>) -> PyResult<Vec<Span>> {
        let py = item.py();
        let (pickled, buffers, spans): (Bound<'_, PyAny>, Vec<PyBuffer<u8>>, Vec<Span>) =
            helpers(py)?.pickled_parts.bind(py).call1((item,))?.extract()?;
        self.tag(Tag::Pickle);
        let bytes = pickled.cast::<PyBytes>()?.as_bytes();
        self.bulk(bytes.as_ptr(), bytes.len(), || Owner::Object { _object: pickled.clone().unbind() });
        self.length(buffers.len());
        for buffer in buffers {
            let (data, len) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
            self.bulk(data, len, || Owner::Buffer { _buffer: buffer });
        }
        Ok(spans)
    }

    /// Bytes inline where they are few, else as a reference to an out-of-band buffer.
    fn bulk(&mut self, data: *const u8, len: usize, owner: impl FnOnce() -> Owner) {
        if len >= OUT_OF_BAND && self.buffers.len() < MOST_BUFFERS {
            self.payload.push(1);
            self.length(self.buffers.len());
            self.buffers.push(OutBuffer::Memory { address: data as usize, len, _owner: owner() });
            return;
        }
        self.payload.push(0);
        self.length(len);
        if len > 0 {
            // SAFETY: callers pass memory of a live object with at least `len` bytes.
            self.payload.extend_from_slice(unsafe { std::slice::from_raw_parts(data, len) });
        }
    }
}
