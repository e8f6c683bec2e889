//! Encodes items as bytes and buffers.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use rustc_hash::{FxHashMap, FxHashSet};
use torchdata_core::link::arena::Arena;

use super::array;
use super::dlpack::Exported;
use super::helpers::{Kind, helpers, kind_of};
use super::numbers::{self, Whole};
use super::source::{OutBuffer, Source};
use super::tensor::{self, Layout};
use super::{MOST_BUFFERS, OUT_OF_BAND, Tag};

const DEEPEST: usize = 64;

/// The minimum length of a string that is sent only once if the string occurs several times in an item. A shorter
/// string is copied, because looking up an earlier occurrence would take as long as the copy.
const LONG_STRING: ffi::Py_ssize_t = 64;
/// The maximum capacity that the encoder's tables keep after a large item.
const MOST_REMEMBERED: usize = 1024;

type Span = (usize, usize);

#[derive(Clone, Copy)]
struct Within<'a> {
    arena: &'a Arc<Arena>,
    depth: usize,
    alone: bool,
}

impl Within<'_> {
    /// Returns whether only the object's container and the encoder refer to the object.
    fn is_alone(self, object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: `Py_REFCNT` only reads the reference count of an existing object.
        self.alone && unsafe { ffi::Py_REFCNT(object.as_ptr()) } <= 1 + isize::from(self.depth > 0)
    }

    fn within(self, container: &Bound<'_, PyAny>) -> Self {
        Self { alone: self.is_alone(container), depth: self.depth + 1, ..self }
    }
}

enum Stop {
    /// The item must be pickled as a whole, because it is nested too deeply or may contain the same object twice.
    Whole,
    Error(PyErr),
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Stop::Error(error)
    }
}

#[derive(Default)]
pub struct Encoder {
    pub payload: Vec<u8>,
    pub buffers: Vec<OutBuffer>,
    /// The addresses of objects that may occur twice in the item.
    visited: FxHashSet<usize>,
    /// The numbers of long strings and bytes objects, by the address of the object. The stored reference keeps the
    /// object alive, so that no other object gets the same address.
    kept: FxHashMap<usize, (u64, Py<PyAny>)>,
    announced: u64,
    /// The memory ranges of the item's tensors. The key is the start address of a range, and the value is its end
    /// address.
    spans: BTreeMap<usize, usize>,
    /// A member that must be pickled, and the offset in the payload where its pickle belongs.
    pickled_member: Option<(usize, Py<PyAny>)>,
    /// Whether encoding an equal item could give different bytes, for example because a pickle depends on the identity
    /// of objects.
    pub opaque: bool,
}

impl Encoder {
    pub fn encode(&mut self, item: &Bound<'_, PyAny>, arena: &Arc<Arena>) -> PyResult<()> {
        self.clear();
        match self.put(item, Within { arena, depth: 0, alone: true }).and_then(|()| self.pickle_member(item.py())) {
            Ok(()) => Ok(()),
            Err(Stop::Error(error)) => Err(error),
            Err(Stop::Whole) => {
                self.clear();
                self.pickle(item).map(drop)
            }
        }
    }

    pub fn clear(&mut self) {
        self.payload.clear();
        self.buffers.clear();
        // Clearing a table takes time proportional to its capacity, so the table is shrunk after a large item.
        if !self.visited.is_empty() {
            self.visited.clear();
            self.visited.shrink_to(MOST_REMEMBERED);
        }
        if !self.kept.is_empty() {
            self.kept.clear();
            self.kept.shrink_to(MOST_REMEMBERED);
        }
        if !self.spans.is_empty() {
            self.spans.clear();
        }
        self.announced = 0;
        self.pickled_member = None;
        self.opaque = false;
    }

    fn tag(&mut self, tag: Tag) {
        self.payload.push(tag as u8);
    }

    fn length(&mut self, len: usize) {
        self.payload.extend_from_slice(&(len as u64).to_le_bytes());
    }

    /// Records an object that may occur twice in the item. An object with at most two references occurs only once in
    /// the item, because one of the two references is the encoder's own.
    fn visit(&mut self, object: &Bound<'_, PyAny>) -> Result<(), Stop> {
        // SAFETY: `Py_REFCNT` only reads the reference count of an existing object.
        if unsafe { ffi::Py_REFCNT(object.as_ptr()) } <= 2 {
            return Ok(());
        }
        let pointer = object.as_ptr() as usize;
        if self.pickled_member.is_none() && self.visited.insert(pointer) { Ok(()) } else { Err(Stop::Whole) }
    }

    /// If `string` has occurred earlier in the item, writes a reference to the first occurrence and returns true.
    ///
    /// Every long string is numbered at its first occurrence (`Tag::Kept`), even if it occurs only once, so that equal
    /// items have equal encodings.
    fn is_again(&mut self, string: &Bound<'_, PyAny>, len: ffi::Py_ssize_t) -> Result<bool, Stop> {
        if len < LONG_STRING {
            return Ok(false);
        }
        // SAFETY: `Py_REFCNT` only reads the reference count of an existing object.
        if unsafe { ffi::Py_REFCNT(string.as_ptr()) } > 2 {
            if self.pickled_member.is_some() {
                return Err(Stop::Whole);
            }
            match self.kept.entry(string.as_ptr() as usize) {
                Entry::Occupied(known) => {
                    let number = known.get().0;
                    self.opaque = true;
                    self.tag(Tag::Again);
                    self.payload.extend_from_slice(&number.to_le_bytes());
                    return Ok(true);
                }
                Entry::Vacant(free) => {
                    free.insert((self.announced, string.clone().unbind()));
                }
            }
        }
        self.announced += 1;
        self.tag(Tag::Kept);
        Ok(false)
    }

    /// If two tensors share memory, the whole item is pickled, because only pickle preserves the sharing.
    fn visit_span(&mut self, (start, end): Span) -> Result<(), Stop> {
        if start == end {
            return Ok(());
        }
        let overlaps = self.spans.range(..end).next_back().is_some_and(|(_, &before)| before > start);
        self.spans.insert(start, end);
        if overlaps { Err(Stop::Whole) } else { Ok(()) }
    }

    /// Records a member that must be pickled. The whole item is pickled if a second member must be pickled, or if the
    /// member shares objects with other members.
    fn other(&mut self, item: &Bound<'_, PyAny>, depth: usize) -> Result<(), Stop> {
        if depth == 0 {
            self.pickle(item)?;
            return Ok(());
        }
        if self.pickled_member.is_some() || !self.visited.is_empty() || !self.kept.is_empty() {
            return Err(Stop::Whole);
        }
        self.pickled_member = Some((self.payload.len(), item.clone().unbind()));
        Ok(())
    }

    /// Pickles the member that `other` has recorded. All other members were encoded before, because this pickle would
    /// be wasted if one of them required pickling the whole item.
    fn pickle_member(&mut self, py: Python<'_>) -> Result<(), Stop> {
        let Some((offset, member)) = self.pickled_member.take() else { return Ok(()) };
        let rest = self.payload.split_off(offset);
        let spans = self.pickle(member.bind(py))?;
        self.payload.extend_from_slice(&rest);
        spans.into_iter().try_for_each(|span| self.visit_span(span))
    }

    fn put(&mut self, item: &Bound<'_, PyAny>, scope: Within<'_>) -> Result<(), Stop> {
        if scope.depth > DEEPEST {
            return Err(Stop::Whole);
        }
        let object = item.as_ptr();
        // SAFETY: the GIL is held, and the code only checks exact types and reads existing objects.
        unsafe {
            if ffi::PyLong_CheckExact(object) != 0 {
                return self.integer(item, scope.depth);
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
                let len = ffi::PyBytes_Size(object);
                if !self.is_again(item, len)? {
                    self.tag(Tag::Bytes);
                    self.dense(item, ffi::PyBytes_AsString(object).cast(), len as usize)?;
                }
                return Ok(());
            }
        }
        if let Ok(tuple) = item.cast_exact::<PyTuple>() {
            if !tuple.is_empty() {
                self.visit(item)?;
            }
            // SAFETY: `object` is an exact tuple, which keeps its members alive, so borrowed references suffice.
            let member = |index: usize| unsafe { ffi::PyTuple_GetItem(object, index as ffi::Py_ssize_t) };
            // SAFETY: the GIL is held, and `member` runs no Python code.
            if unsafe { numbers::put_block(&mut self.payload, Tag::Tuple, tuple.len(), member) } {
                return Ok(());
            }
            self.tag(Tag::Tuple);
            self.length(tuple.len());
            let within = scope.within(item);
            return tuple.iter().try_for_each(|member| self.put(&member, within));
        }
        if let Ok(list) = item.cast_exact::<PyList>() {
            self.visit(item)?;
            return self.sequence(Tag::List, list, scope.within(item));
        }
        if let Ok(dict) = item.cast_exact::<PyDict>() {
            self.visit(item)?;
            self.tag(Tag::Dict);
            self.length(dict.len());
            let within = scope.within(item);
            for (key, value) in dict {
                self.put(&key, within)?;
                self.put(&value, within)?;
            }
            return Ok(());
        }
        match kind_of(item)? {
            Kind::Array => self.array(item, scope),
            Kind::NumpyScalar => match array::scalar_parts(item)? {
                Some((dtype, bytes)) => {
                    self.tag(Tag::Scalar);
                    dtype.write(&mut self.payload);
                    self.payload.push(bytes.len() as u8);
                    self.payload.extend_from_slice(&bytes);
                    Ok(())
                }
                None => self.other(item, scope.depth),
            },
            Kind::Tensor => self.tensor(item, scope),
            Kind::DataChunk => {
                self.visit(item)?;
                // SAFETY: the class `DataChunk` derives from list, so list functions can read its members.
                let list = unsafe { item.cast_unchecked::<PyList>() };
                self.sequence(Tag::DataChunk, list, scope.within(item))
            }
            Kind::Other => self.other(item, scope.depth),
        }
    }

    fn sequence(&mut self, tag: Tag, list: &Bound<'_, PyList>, within: Within<'_>) -> Result<(), Stop> {
        let len = list.len();
        let object = list.as_ptr();
        // SAFETY: `object` is a list of `len` members. The borrowed references stay valid, because no other code
        // changes the list during `put_block`.
        let member = |index: usize| unsafe { ffi::PyList_GetItem(object, index as ffi::Py_ssize_t) };
        // SAFETY: the GIL is held, and `member` runs no Python code.
        if unsafe { numbers::put_block(&mut self.payload, tag, len, member) } {
            return Ok(());
        }
        self.tag(tag);
        self.length(len);
        for index in 0..len {
            self.put(&list.get_item(index)?, within)?;
        }
        Ok(())
    }

    fn integer(&mut self, item: &Bound<'_, PyAny>, depth: usize) -> Result<(), Stop> {
        // SAFETY: the caller has checked that the type of `item` is exactly int.
        match unsafe { numbers::whole(item.as_ptr()) } {
            Whole::Signed(value) => {
                self.tag(Tag::Int);
                self.payload.extend_from_slice(&value.to_le_bytes());
            }
            Whole::Unsigned(value) => {
                self.tag(Tag::Unsigned);
                self.payload.extend_from_slice(&value.to_le_bytes());
            }
            Whole::Longer => return self.other(item, depth),
        }
        Ok(())
    }

    fn string(&mut self, item: &Bound<'_, PyAny>) -> Result<(), Stop> {
        // SAFETY: the caller has checked that the type of `item` is exactly str.
        if self.is_again(item, unsafe { ffi::PyUnicode_GetLength(item.as_ptr()) })? {
            return Ok(());
        }
        let mut len = 0;
        // SAFETY: the type of `item` is exactly str. The string keeps its cached UTF-8 form until the string is freed.
        let data = unsafe { ffi::PyUnicode_AsUTF8AndSize(item.as_ptr(), &mut len) };
        if data.is_null() {
            drop(PyErr::take(item.py())); // a string with lone surrogates has no UTF-8 form, so it is pickled
            self.pickle(item)?;
            return Ok(());
        }
        self.tag(Tag::Str);
        Ok(self.dense(item, data.cast(), len as usize)?)
    }

    fn array(&mut self, item: &Bound<'_, PyAny>, scope: Within<'_>) -> Result<(), Stop> {
        self.visit(item)?;
        let Some(parts) = array::parts(item) else { return self.other(item, scope.depth) };
        self.opaque |= !parts.order.is_empty();
        self.tag(Tag::Array);
        parts.dtype.write(&mut self.payload);
        self.payload.push(parts.shape.len() as u8);
        array::write_order(&parts.order, &mut self.payload);
        for &dim in parts.shape {
            self.length(dim as usize);
        }
        if !self.is_inline(parts.len)
            && scope.is_alone(item)
            && let Some(block) = array::sole_block(item, &parts)
            && block.is_of(scope.arena)
        {
            self.out_of_band(OutBuffer::Block(block));
            return Ok(());
        }
        match parts.strided {
            None => self.dense(item, parts.data, parts.len)?,
            Some(strided) => self.bulk(item.py(), Source::strided(parts.data, strided, Some(item)))?,
        }
        Ok(())
    }

    fn tensor(&mut self, item: &Bound<'_, PyAny>, scope: Within<'_>) -> Result<(), Stop> {
        self.visit(item)?;
        let Some(tensor) = Exported::of(item)? else { return self.other(item, scope.depth) };
        let (Some(Layout { strides, strided }), Ok(_)) = (Layout::of(&tensor)?, u8::try_from(tensor.shape().len()))
        else {
            return self.other(item, scope.depth);
        };
        let (data, len, reach) = (tensor.data(), tensor.len(), tensor.reach());
        let start = data as usize;
        self.visit_span((start, start.saturating_add(reach)))?;
        self.tag(Tag::Tensor);
        self.opaque |= strides.is_some();
        tensor::write(&mut self.payload, tensor.element(), tensor.shape(), strides.as_deref());
        drop(tensor); // the tensor's capsule would count as a further reference to the memory
        if let Some(strided) = strided {
            return Ok(self.bulk(item.py(), Source::strided(data, strided, Some(item)))?);
        }
        if strides.is_none() && !self.is_inline(len) && scope.is_alone(item) && scope.arena.holds(data) {
            let room = helpers(item.py())?.room_of.bind(item.py()).call1((item, start)).map_err(Stop::from)?;
            // If the tensor covers a whole arena block, the block is sent without copying.
            if let Some(block) = array::block_under(&room, data, len).filter(|block| block.is_of(scope.arena)) {
                self.out_of_band(OutBuffer::Block(block));
                return Ok(());
            }
        }
        Ok(self.dense(item, data, reach)?)
    }

    /// Pickles an object, and returns the memory ranges of the tensors in the object.
    fn pickle(&mut self, item: &Bound<'_, PyAny>) -> PyResult<Vec<Span>> {
        self.opaque = true;
        let py = item.py();
        let (pickled, buffers, spans): (Bound<'_, PyAny>, Vec<Bound<'_, PyAny>>, Vec<Span>) =
            helpers(py)?.pickled_parts.bind(py).call1((item,))?.extract()?;
        self.tag(Tag::Pickle);
        let bytes = pickled.cast::<PyBytes>()?.as_bytes();
        self.dense(&pickled, bytes.as_ptr(), bytes.len())?;
        self.length(buffers.len());
        for owner in buffers {
            let buffer = PyBuffer::<u8>::get(&owner)?; // the memoryview `owner` keeps the memory at this address
            self.dense(&owner, buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())?;
        }
        Ok(spans)
    }

    fn dense(&mut self, owner: &Bound<'_, PyAny>, data: *const u8, len: usize) -> PyResult<()> {
        if self.is_inline(len) {
            self.reserve(len)?;
            self.inline_head(len);
            if len > 0 {
                // SAFETY: callers pass the address of at least `len` bytes, which belong to an existing object.
                self.payload.extend_from_slice(unsafe { std::slice::from_raw_parts(data, len) });
            }
            return Ok(());
        }
        self.out_of_band(OutBuffer::Memory(Source::dense(data, len, Some(owner))));
        Ok(())
    }

    fn inline_head(&mut self, len: usize) {
        let mut head = [0; 9];
        head[1..].copy_from_slice(&(len as u64).to_le_bytes());
        self.payload.extend_from_slice(&head);
    }

    fn reserve(&mut self, len: usize) -> PyResult<()> {
        let room = self.payload.try_reserve(len + 9);
        room.map_err(|_| PyMemoryError::new_err(format!("there is no memory for {len} more bytes of an encoded item")))
    }

    fn bulk(&mut self, py: Python<'_>, source: Source) -> PyResult<()> {
        let len = source.len();
        if !self.is_inline(len) {
            self.out_of_band(OutBuffer::Memory(source));
            return Ok(());
        }
        self.reserve(len)?;
        self.inline_head(len);
        // SAFETY: `reserve` has made room for `len` more bytes, and `copy` initializes these bytes.
        unsafe {
            source.copy(py, self.payload.as_mut_ptr().add(self.payload.len()));
            self.payload.set_len(self.payload.len() + len);
        }
        Ok(())
    }

    fn is_inline(&self, len: usize) -> bool {
        len < OUT_OF_BAND || self.buffers.len() >= MOST_BUFFERS
    }

    fn out_of_band(&mut self, buffer: OutBuffer) {
        self.payload.push(1);
        self.length(self.buffers.len());
        self.buffers.push(buffer);
    }
}
