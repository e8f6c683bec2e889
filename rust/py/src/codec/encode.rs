//! Items to bytes and buffers.

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
use super::moments;
use super::numbers::{self, Whole};
use super::source::{OutBuffer, Owner, Source};
use super::tensor::{self, Layout};
use super::{MOST_BUFFERS, OUT_OF_BAND, Tag};

/// Deeper nesting is left to pickle, which has its own limit.
const DEEPEST: usize = 64;

/// A string from this length on is sent once, however often an item holds it. Copying a shorter one, such as most keys
/// of dictionaries, takes no longer than looking it up.
const LONG_STRING: ffi::Py_ssize_t = 64;
/// Room for objects that is kept from item to item.
const MOST_REMEMBERED: usize = 1024;

/// A part of this process' memory: the address of its first byte, and that behind its last one.
type Span = (usize, usize);

/// The walk's knowledge of its place in the item.
#[derive(Clone, Copy)]
struct Within<'a> {
    arena: &'a Arc<Arena>,
    depth: usize,
    /// Whether nothing but the item refers to the containers around it.
    alone: bool,
}

impl Within<'_> {
    /// Whether nothing but the item refers to the object here: the container does, and the walk, which is handed the
    /// item itself by the only reference to it.
    fn is_alone(self, object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: reads the reference count of a live object.
        self.alone && unsafe { ffi::Py_REFCNT(object.as_ptr()) } <= 1 + isize::from(self.depth > 0)
    }

    /// The place of the members of the container here.
    fn within(self, container: &Bound<'_, PyAny>) -> Self {
        Self { alone: self.is_alone(container), depth: self.depth + 1, ..self }
    }
}

/// Why the tree walk gave up.
enum Stop {
    /// The item is for pickle as a whole: something appears twice in it (or might, if a member is for pickle and so
    /// out of sight), or it is nested too deeply.
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
    /// Long strings of the item, text and bytes, times and UUIDs that something else refers to as well: their numbers,
    /// and what keeps them where they are.
    kept: FxHashMap<usize, (u64, Py<PyAny>)>,
    /// How many such objects of the item were announced, those included that nothing else refers to.
    announced: u64,
    /// Where the item's tensors lie: the address behind each one's last byte, by that of its first.
    spans: BTreeMap<usize, usize>,
    /// The member that is to be pickled, which may hold what other members hold, too, and where in the payload.
    pickled_member: Option<(usize, Py<PyAny>)>,
    /// Whether the bytes may be others the next time although the item is the same: pickles depend on which objects are
    /// one and the same, and so do references to strings; copies of an array may lie in another order. It follows from
    /// the item alone, as the bytes do where this is not set: an item that is computed again may be referred to by
    /// other objects than at first.
    pub opaque: bool,
}

impl Encoder {
    /// Encodes an item that goes out of `arena` into `self.payload` and `self.buffers`.
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

    /// Lets go of the last item.
    pub fn clear(&mut self) {
        self.payload.clear();
        self.buffers.clear();
        // Clearing takes as long as the tables are large: one large item must not make all others slow.
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

    /// Writes a reference if a string of `len` characters or bytes, or the like, is in the item already. Otherwise writes
    /// `Kept` before each long string, because the encoding must depend on the value of the item and not on its reference
    /// counts. A string that nothing else refers to is not looked up, as for `visit`.
    fn is_again(&mut self, string: &Bound<'_, PyAny>, len: ffi::Py_ssize_t) -> Result<bool, Stop> {
        if len < LONG_STRING {
            return Ok(false);
        }
        // SAFETY: reads the reference count of a live object.
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

    /// Pickles what has no encoding of its own. In an item with more members that is done to one member at most, and
    /// only if nothing in it can lie elsewhere in the item as well.
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

    /// Pickles the member that was put off until it was known that the item need not be pickled as a whole: pickling
    /// may be costly, and objects may count on it that they are pickled once.
    fn pickle_member(&mut self, py: Python<'_>) -> Result<(), Stop> {
        let Some((place, member)) = self.pickled_member.take() else { return Ok(()) };
        let behind = self.payload.split_off(place);
        let spans = self.pickle(member.bind(py))?;
        self.payload.extend_from_slice(&behind);
        spans.into_iter().try_for_each(|span| self.visit_span(span))
    }

    fn put(&mut self, item: &Bound<'_, PyAny>, place: Within<'_>) -> Result<(), Stop> {
        if place.depth > DEEPEST {
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
            // SAFETY: an exact tuple, whose members are borrowed while it lives.
            let member = |index: usize| unsafe { ffi::PyTuple_GetItem(object, index as ffi::Py_ssize_t) };
            // SAFETY: as above.
            if unsafe { numbers::put_block(&mut self.payload, Tag::Tuple, tuple.len(), member) } {
                return Ok(());
            }
            self.tag(Tag::Tuple);
            self.length(tuple.len());
            let within = place.within(item);
            return tuple.iter().try_for_each(|member| self.put(&member, within));
        }
        if let Ok(list) = item.cast_exact::<PyList>() {
            self.visit(item)?;
            return self.sequence(Tag::List, list, place.within(item));
        }
        if let Ok(dict) = item.cast_exact::<PyDict>() {
            self.visit(item)?;
            self.tag(Tag::Dict);
            self.length(dict.len());
            let within = place.within(item);
            for (key, value) in dict {
                self.put(&key, within)?;
                self.put(&value, within)?;
            }
            return Ok(());
        }
        match kind_of(item)? {
            Kind::Array => self.array(item, place),
            Kind::NumpyScalar => match array::scalar_parts(item)? {
                Some((dtype, bytes)) => {
                    self.tag(Tag::Scalar);
                    dtype.write(&mut self.payload);
                    self.payload.push(bytes.len() as u8);
                    self.payload.extend_from_slice(&bytes);
                    Ok(())
                }
                None => self.other(item, place.depth),
            },
            Kind::Tensor => self.tensor(item, place),
            Kind::DataChunk => {
                self.visit(item)?;
                // SAFETY: the class derives from list, and its members are read as those of a list.
                let list = unsafe { item.cast_unchecked::<PyList>() };
                self.sequence(Tag::DataChunk, list, place.within(item))
            }
            kind @ (Kind::DateTime | Kind::Date | Kind::Time | Kind::TimeDelta | Kind::Uuid) => {
                self.moment(item, kind, place.depth)
            }
            Kind::Other => self.other(item, place.depth),
        }
    }

    fn sequence(&mut self, tag: Tag, list: &Bound<'_, PyList>, within: Within<'_>) -> Result<(), Stop> {
        let len = list.len();
        let object = list.as_ptr();
        // SAFETY: a list of so many members, which are borrowed while nobody can change it.
        let member = |index: usize| unsafe { ffi::PyList_GetItem(object, index as ffi::Py_ssize_t) };
        // SAFETY: as above.
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

    fn integer(&mut self, item: &Bound<'_, PyAny>) -> Result<(), Stop> {
        // SAFETY: an exact int, checked by the caller.
        match unsafe { numbers::whole(item.as_ptr()) } {
            Whole::Signed(value) => {
                self.tag(Tag::Int);
                self.payload.extend_from_slice(&value.to_le_bytes());
            }
            Whole::Unsigned(value) => {
                self.tag(Tag::Unsigned);
                self.payload.extend_from_slice(&value.to_le_bytes());
            }
            Whole::Digits => {
                let digits = numbers::digits(item)?;
                let digits = digits.to_str()?.as_bytes();
                self.reserve(digits.len() + 1)?;
                self.tag(Tag::Digits);
                self.length(digits.len() + 1);
                self.payload.extend_from_slice(digits);
                self.payload.push(0);
            }
            Whole::Bytes => {
                let bytes = numbers::bytes(item)?;
                self.reserve(bytes.as_bytes().len())?;
                self.tag(Tag::BigInt);
                self.length(bytes.as_bytes().len());
                self.payload.extend_from_slice(bytes.as_bytes());
            }
        }
        Ok(())
    }

    /// A time or a UUID: a value, yet pickle keeps its identity, and so it is kept here.
    fn moment(&mut self, item: &Bound<'_, PyAny>, kind: Kind, depth: usize) -> Result<(), Stop> {
        let Some((tag, bytes)) = moments::parts(item, kind)? else { return self.other(item, depth) };
        if !self.is_again(item, LONG_STRING)? {
            self.tag(tag);
            self.payload.extend_from_slice(&bytes[..moments::size(tag)]);
        }
        Ok(())
    }

    fn string(&mut self, item: &Bound<'_, PyAny>) -> Result<(), Stop> {
        // SAFETY: an exact str.
        if self.is_again(item, unsafe { ffi::PyUnicode_GetLength(item.as_ptr()) })? {
            return Ok(());
        }
        let mut len = 0;
        // SAFETY: an exact str; the UTF-8 form is cached in the object and lives as long as it does.
        let data = unsafe { ffi::PyUnicode_AsUTF8AndSize(item.as_ptr(), &mut len) };
        if data.is_null() {
            drop(PyErr::take(item.py())); // lone surrogates have no UTF-8 form; pickle knows how to pass them
            self.pickle(item)?;
            return Ok(());
        }
        self.tag(Tag::Str);
        Ok(self.dense(item, data.cast(), len as usize)?)
    }

    fn array(&mut self, item: &Bound<'_, PyAny>, place: Within<'_>) -> Result<(), Stop> {
        self.visit(item)?;
        let Some(parts) = array::parts(item) else { return self.other(item, place.depth) };
        self.opaque |= !parts.order.is_by_index();
        self.tag(Tag::Array);
        parts.dtype.write(&mut self.payload);
        self.payload.push(parts.shape.len() as u8);
        parts.order.write(&mut self.payload);
        for &dim in parts.shape {
            self.length(dim as usize);
        }
        if !self.is_inline(parts.len)
            && place.is_alone(item)
            && let Some(block) = array::sole_block(item, &parts)
            && block.is_of(place.arena)
        {
            self.out_of_band(OutBuffer::Block(block));
            return Ok(());
        }
        match parts.strided {
            None => self.dense(item, parts.data, parts.len)?,
            Some(strided) => self.bulk(item.py(), Source::strided(parts.data, strided, Owner::of(item)))?,
        }
        Ok(())
    }

    fn tensor(&mut self, item: &Bound<'_, PyAny>, place: Within<'_>) -> Result<(), Stop> {
        self.visit(item)?;
        let Some(tensor) = Exported::of(item)? else { return self.other_tensor(item, place) };
        let (Some(layout), Ok(_)) = (Layout::of(&tensor)?, u8::try_from(tensor.shape().len())) else {
            return self.other_tensor(item, place);
        };
        let (data, len, reach) = (tensor.data(), tensor.len(), tensor.reach());
        let start = data as usize;
        self.visit_span((start, start.saturating_add(reach)))?;
        self.tag(Tag::Tensor);
        let strides = match &layout {
            Layout::Contiguous => None,
            Layout::AsTheyLie(strides) | Layout::Apart(_, strides) => Some(&strides[..]),
        };
        self.opaque |= strides.is_some();
        tensor::write(&mut self.payload, tensor.element(), tensor.shape(), strides);
        drop(tensor); // a capsule would be one more that holds its memory
        match layout {
            Layout::Contiguous => {
                if !self.is_inline(len) && place.is_alone(item) && place.arena.holds(data) {
                    let room = helpers(item.py())?.room_of.bind(item.py()).call1((item, start)).map_err(Stop::from)?;
                    if !room.is_none() && self.hand_over(&room, data, len, place) {
                        return Ok(());
                    }
                }
                self.dense(item, data, len)?;
            }
            Layout::AsTheyLie(_) => self.dense(item, data, reach)?,
            Layout::Apart(strided, _) => self.bulk(item.py(), Source::strided(data, strided, Owner::of(item)))?,
        }
        Ok(())
    }

    /// Sends a block of the arena as it is, if the array that a tensor lies in covers it whole.
    fn hand_over(&mut self, room: &Bound<'_, PyAny>, data: *const u8, len: usize, place: Within<'_>) -> bool {
        let Some(block) = array::block_under(room, data, len).filter(|block| block.is_of(place.arena)) else {
            return false;
        };
        self.out_of_band(OutBuffer::Block(block));
        true
    }

    /// A tensor that DLPack does not describe, or not all of.
    fn other_tensor(&mut self, item: &Bound<'_, PyAny>, place: Within<'_>) -> Result<(), Stop> {
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
        type Parts<'py> = (String, Vec<u64>, bool, usize, usize, Option<Bound<'py, PyAny>>);
        let (dtype, shape, grad, data, len, room): Parts<'_> = parts.extract()?;
        let (Ok(dtype_len), Ok(dimensions)) = (u8::try_from(dtype.len()), u8::try_from(shape.len())) else {
            self.pickle(item)?; // torch has no limit to the number of dimensions
            return Ok(());
        };
        self.tag(Tag::OtherTensor);
        self.payload.push(dtype_len);
        self.payload.extend_from_slice(dtype.as_bytes());
        self.payload.extend_from_slice(&[u8::from(grad), dimensions]);
        for dim in shape {
            self.length(dim as usize);
        }
        let data = data as *const u8;
        if let Some(room) = room
            && !self.is_inline(len)
            && place.is_alone(item)
            && self.hand_over(&room, data, len, place)
        {
            return Ok(());
        }
        Ok(self.dense(item, data, len)?)
    }

    /// Returns where the tensors in `item` lie; the spans do not overlap.
    fn pickle(&mut self, item: &Bound<'_, PyAny>) -> PyResult<Vec<Span>> {
        self.opaque = true;
        let py = item.py();
        let (pickled, buffers, spans): (Bound<'_, PyAny>, Vec<PyBuffer<u8>>, Vec<Span>) =
            helpers(py)?.pickled_parts.bind(py).call1((item,))?.extract()?;
        self.tag(Tag::Pickle);
        let bytes = pickled.cast::<PyBytes>()?.as_bytes();
        self.dense(&pickled, bytes.as_ptr(), bytes.len())?;
        self.length(buffers.len());
        for buffer in buffers {
            let (data, len) = (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes());
            self.bulk(py, Source::dense(data, len, Owner::Buffer { _buffer: buffer }))?;
        }
        Ok(spans)
    }

    /// A run of bytes that is a part of `owner`: inline if they are few, else out of band.
    fn dense(&mut self, owner: &Bound<'_, PyAny>, data: *const u8, len: usize) -> PyResult<()> {
        if self.is_inline(len) {
            self.reserve(len)?;
            self.inline_head(len);
            if len > 0 {
                // SAFETY: callers pass memory of a live object with at least `len` bytes.
                self.payload.extend_from_slice(unsafe { std::slice::from_raw_parts(data, len) });
            }
            return Ok(());
        }
        self.out_of_band(OutBuffer::Memory(Source::dense(data, len, Owner::of(owner))));
        Ok(())
    }

    /// Announces `len` bytes that follow.
    fn inline_head(&mut self, len: usize) {
        let mut head = [0; 9];
        head[1..].copy_from_slice(&(len as u64).to_le_bytes());
        self.payload.extend_from_slice(&head);
    }

    /// Makes room for `len` bytes and what announces them.
    fn reserve(&mut self, len: usize) -> PyResult<()> {
        let room = self.payload.try_reserve(len + 9);
        room.map_err(|_| PyMemoryError::new_err(format!("there is no memory for {len} more bytes of an encoded item")))
    }

    /// The same for bytes that lie in any way.
    fn bulk(&mut self, py: Python<'_>, source: Source) -> PyResult<()> {
        let len = source.len();
        if !self.is_inline(len) {
            self.out_of_band(OutBuffer::Memory(source));
            return Ok(());
        }
        self.reserve(len)?;
        self.inline_head(len);
        // SAFETY: the vector has room for so many bytes more, and holds them after the copy.
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
