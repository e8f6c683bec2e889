//! Encodes an int of at most 64 bits, and packs a sequence of ints, floats or bools into a single block.
//!
//! A sequence is packed only if it has at least two members, which are all floats, all bools, or all ints that fit one
//! type (i64 or u64). Decoding a block creates new number objects, which is acceptable because neither Python nor
//! pickle reliably preserves the identity of numbers.

use pyo3::ffi;
use pyo3::prelude::*;

use super::{Tag, malformed};

pub enum Whole {
    Signed(i64),
    Unsigned(u64),
    Longer,
}

fn width(element: Tag) -> usize {
    if element == Tag::True { 1 } else { 8 }
}

/// Converts an int to a word of 64 bits. When this function returns, no Python exception is set.
///
/// # Safety
/// `object` is an existing int, and the GIL is held.
pub unsafe fn whole(object: *mut ffi::PyObject) -> Whole {
    let mut overflow = 0;
    // SAFETY: the caller guarantees an existing int and the GIL. PyLong_AsLongLongAndOverflow sets `overflow` if the
    // int exceeds an i64. PyLong_AsUnsignedLongLong sets an exception if the int exceeds a u64.
    unsafe {
        let value = ffi::PyLong_AsLongLongAndOverflow(object, &mut overflow);
        if overflow == 0 {
            return Whole::Signed(value);
        }
        if overflow < 0 {
            return Whole::Longer;
        }
        let value = ffi::PyLong_AsUnsignedLongLong(object);
        if value == u64::MAX && !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_Clear();
            return Whole::Longer;
        }
        Whole::Unsigned(value)
    }
}

/// Writes the members of a sequence as one block, or returns false if a block cannot contain the members.
///
/// # Safety
/// The GIL is held. For each index below `len`, `member` returns a borrowed reference or NULL, and runs no Python code.
pub unsafe fn put_block(
    payload: &mut Vec<u8>,
    container: Tag,
    len: usize,
    member: impl Fn(usize) -> *mut ffi::PyObject,
) -> bool {
    if len < 2 {
        return false;
    }
    // SAFETY: the caller holds the GIL, and guarantees that `member` returns borrowed references. The code below only
    // inspects types and reads numbers, so no Python code runs that could free the members.
    unsafe {
        let first = member(0);
        let second = member(1);
        if first.is_null() || second.is_null() || ffi::Py_TYPE(first) != ffi::Py_TYPE(second) {
            return false;
        }
        let element = if ffi::PyLong_CheckExact(first) != 0 {
            Tag::Int
        } else if ffi::PyFloat_CheckExact(first) != 0 {
            Tag::Float
        } else if ffi::PyBool_Check(first) != 0 {
            Tag::True
        } else {
            return false;
        };
        let Some(bytes) = len.checked_mul(width(element)) else { return false };
        if payload.try_reserve(bytes.saturating_add(11)).is_err() {
            return false; // the caller then encodes each member, which reports the lack of memory
        }
        let start = payload.len();
        payload.extend_from_slice(&[Tag::Numbers as u8, container as u8, element as u8]);
        payload.extend_from_slice(&(len as u64).to_le_bytes());
        let (class, mut negative, mut large) = (ffi::Py_TYPE(first), false, false);
        let all = (0..len).map(member).all(|object| {
            if object.is_null() || ffi::Py_TYPE(object) != class {
                return false;
            }
            let word = match element {
                Tag::Int => match whole(object) {
                    Whole::Signed(value) => {
                        negative |= value < 0;
                        value as u64
                    }
                    Whole::Unsigned(value) => {
                        large = true;
                        value
                    }
                    Whole::Longer => return false,
                },
                Tag::Float => ffi::PyFloat_AsDouble(object).to_bits(),
                _ => {
                    payload.push(u8::from(object == ffi::Py_True()));
                    return true;
                }
            };
            payload.extend_from_slice(&word.to_le_bytes());
            true
        });
        if large {
            payload[start + 2] = Tag::Unsigned as u8;
        }
        let is_block = all && !(negative && large); // no type fits both negative and large ints
        if !is_block {
            payload.truncate(start);
        }
        is_block
    }
}

pub fn block_bytes(element: Tag, len: usize) -> PyResult<usize> {
    if !matches!(element, Tag::Int | Tag::Unsigned | Tag::Float | Tag::True) {
        return Err(malformed());
    }
    len.checked_mul(width(element)).ok_or_else(malformed)
}

pub fn read_block<'py>(py: Python<'py>, is_tuple: bool, element: Tag, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let len = bytes.len() / width(element);
    let count = ffi::Py_ssize_t::try_from(len).map_err(|_| malformed())?;
    // SAFETY: no other code refers to the new sequence until all members are set. After an error, some entries are
    // still NULL, and the destructor of the sequence skips NULL entries. Setting a member transfers its ownership to
    // the sequence.
    unsafe {
        let object = if is_tuple { ffi::PyTuple_New(count) } else { ffi::PyList_New(count) };
        let sequence = Bound::from_owned_ptr_or_err(py, object)?;
        let (words, _) = bytes.as_chunks::<8>();
        for index in 0..count {
            let word = || u64::from_le_bytes(words[index as usize]);
            let member = match element {
                Tag::Int => ffi::PyLong_FromLongLong(word() as i64),
                Tag::Unsigned => ffi::PyLong_FromUnsignedLongLong(word()),
                Tag::Float => ffi::PyFloat_FromDouble(f64::from_bits(word())),
                _ => ffi::PyBool_FromLong(bytes[index as usize].into()),
            };
            if member.is_null() {
                return Err(PyErr::fetch(py));
            }
            match is_tuple {
                true => ffi::PyTuple_SetItem(object, index, member),
                false => ffi::PyList_SetItem(object, index, member),
            };
        }
        Ok(sequence)
    }
}
