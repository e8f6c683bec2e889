//! Times, durations and UUIDs of the standard library, encoded by their pickled bytes.
//!
//! | kind | bytes |
//! | --- | --- |
//! | datetime, date, time | the bytes from `__reduce_ex__`: year, month, day, hour, minute, second, microsecond,
//! big-endian |
//! | timedelta | days, seconds and microseconds, i32 each |
//! | UUID | its number, u128 |
//!
//! The only supported time zone is `timezone.utc`. Objects with other time zones, and UUIDs with a known `is_safe`, are
//! pickled.

use std::ptr;

use once_cell::race::OnceBox;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

use super::helpers::Kind;
use super::numbers::{digits, from_digits};
use super::{Tag, malformed};

/// The used parts of `datetime`, looked up by the first call.
struct Times {
    datetime: Py<PyAny>,
    date: Py<PyAny>,
    time: Py<PyAny>,
    timedelta: Py<PyAny>,
    utc: Py<PyAny>,
    reduce_ex: Py<PyString>,
    reduce: Py<PyString>,
    parts: [Py<PyString>; 3],
    /// The pickle protocol: 4.
    protocol: Py<PyInt>,
}

/// The used parts of `uuid`, looked up by the first call.
struct Uuids {
    class: Py<PyAny>,
    /// `SafeUUID.unknown`
    unknown: Py<PyAny>,
    int: Py<PyString>,
    is_safe: Py<PyString>,
    new: ffi::newfunc,
    no_args: Py<PyTuple>,
}

/// FORK: no lock; see `helpers`.
fn times(py: Python<'_>) -> PyResult<&'static Times> {
    static TIMES: OnceBox<Times> = OnceBox::new();
    TIMES.get_or_try_init(|| {
        let module = PyModule::import(py, "datetime")?;
        let get = |name| module.getattr(name).map(Bound::unbind);
        let word = |name| PyString::intern(py, name).unbind();
        Ok(Box::new(Times {
            datetime: get("datetime")?,
            date: get("date")?,
            time: get("time")?,
            timedelta: get("timedelta")?,
            utc: module.getattr("timezone")?.getattr("utc")?.unbind(),
            reduce_ex: word("__reduce_ex__"),
            reduce: word("__reduce__"),
            parts: [word("days"), word("seconds"), word("microseconds")],
            protocol: PyInt::new(py, 4).unbind(),
        }))
    })
}

/// FORK: no lock; see `helpers`.
fn uuids(py: Python<'_>) -> PyResult<&'static Uuids> {
    static UUIDS: OnceBox<Uuids> = OnceBox::new();
    UUIDS.get_or_try_init(|| {
        let module = PyModule::import(py, "uuid")?;
        // SAFETY: `object` has this slot, with this type.
        let new: Option<ffi::newfunc> =
            unsafe { std::mem::transmute(ffi::PyType_GetSlot(&raw mut ffi::PyBaseObject_Type, ffi::Py_tp_new)) };
        Ok(Box::new(Uuids {
            class: module.getattr("UUID")?.unbind(),
            unknown: module.getattr("SafeUUID")?.getattr("unknown")?.unbind(),
            int: PyString::intern(py, "int").unbind(),
            is_safe: PyString::intern(py, "is_safe").unbind(),
            new: new.ok_or_else(malformed)?,
            no_args: PyTuple::empty(py).unbind(),
        }))
    })
}

/// Returns the tag and the bytes of an object of one of these kinds, or None if it must be pickled.
pub fn parts(item: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Option<(Tag, [u8; 16])>> {
    let py = item.py();
    match kind {
        Kind::TimeDelta => timedelta_parts(item).map(Some),
        Kind::Uuid => Ok(uuid_number(item)?.map(|number| (Tag::Uuid, number.to_le_bytes()))),
        _ => {
            let times = times(py)?;
            // SAFETY: existing objects, and NULL after the last argument. Returns a new reference, or NULL with an
            // exception set.
            let reduced = unsafe {
                let object = item.as_ptr();
                Bound::from_owned_ptr_or_err(
                    py,
                    match kind {
                        Kind::Date => ffi::PyObject_CallMethodObjArgs(
                            object,
                            times.reduce.as_ptr(),
                            ptr::null_mut::<ffi::PyObject>(),
                        ),
                        _ => ffi::PyObject_CallMethodObjArgs(
                            object,
                            times.reduce_ex.as_ptr(),
                            times.protocol.as_ptr(),
                            ptr::null_mut::<ffi::PyObject>(),
                        ),
                    },
                )?
            };
            let args = reduced.cast::<PyTuple>()?.get_borrowed_item(1)?.to_owned().cast_into::<PyTuple>()?;
            let is_utc = match args.len() {
                1 => false,
                2 if args.get_borrowed_item(1)?.is(&times.utc) => true,
                _ => return Ok(None),
            };
            let state = args.get_borrowed_item(0)?.to_owned().cast_into::<PyBytes>()?;
            let tag = match (kind, is_utc) {
                (Kind::DateTime, false) => Tag::DateTime,
                (Kind::DateTime, true) => Tag::DateTimeUtc,
                (Kind::Time, false) => Tag::Time,
                (Kind::Time, true) => Tag::TimeUtc,
                _ => Tag::Date,
            };
            let state = state.as_bytes();
            if state.len() != size(tag) {
                return Ok(None);
            }
            let mut bytes = [0; 16];
            bytes[..state.len()].copy_from_slice(state);
            Ok(Some((tag, bytes)))
        }
    }
}

/// The number of bytes that follow a tag of this file.
pub fn size(tag: Tag) -> usize {
    match tag {
        Tag::DateTime | Tag::DateTimeUtc => 10,
        Tag::Time | Tag::TimeUtc => 6,
        Tag::Date => 4,
        Tag::TimeDelta => 12,
        _ => 16,
    }
}

fn timedelta_parts(item: &Bound<'_, PyAny>) -> PyResult<(Tag, [u8; 16])> {
    let py = item.py();
    let mut bytes = [0; 16];
    for (part, place) in times(py)?.parts.iter().zip(bytes.as_chunks_mut::<4>().0) {
        *place = item.getattr(part)?.extract::<i32>()?.to_le_bytes();
    }
    Ok((Tag::TimeDelta, bytes))
}

fn uuid_number(item: &Bound<'_, PyAny>) -> PyResult<Option<u128>> {
    let uuids = uuids(item.py())?;
    let number = item.getattr(&uuids.int)?;
    if !item.getattr(&uuids.is_safe)?.is(&uuids.unknown) || !number.is_exact_instance_of::<PyInt>() {
        return Ok(None);
    }
    let digits = digits(&number)?;
    let digits = digits.to_string_lossy();
    Ok(digits.strip_prefix("0x").and_then(|digits| u128::from_str_radix(digits, 16).ok()))
}

/// Creates the object for a tag of this file and its bytes.
pub fn make<'py>(py: Python<'py>, tag: Tag, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match tag {
        Tag::Uuid => make_uuid(py, u128::from_le_bytes(bytes.try_into().map_err(|_| malformed())?)),
        Tag::TimeDelta => {
            let [days, seconds, microseconds] =
                [0, 4, 8].map(|at| bytes[at..].first_chunk::<4>().map_or(0, |part| i32::from_le_bytes(*part)));
            let made = times(py)?.timedelta.bind(py).call1((days, seconds, microseconds));
            made.map_err(|error| if error.is_instance_of::<PyMemoryError>(py) { error } else { malformed() })
        }
        _ => make_time(py, tag, bytes),
    }
}

fn make_time<'py>(py: Python<'py>, tag: Tag, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let times = times(py)?;
    let (class, date, time) = match tag {
        Tag::DateTime | Tag::DateTimeUtc => (&times.datetime, Some(&bytes[..4]), Some(&bytes[4..])),
        Tag::Date => (&times.date, Some(bytes), None),
        _ => (&times.time, None, Some(bytes)),
    };
    // The class only checks the month. The fold is the highest bit of the month, or of the hour in a `time`.
    let fold = if date.is_none() { 0x7f } else { 0xff };
    if !date.is_none_or(is_date) || !time.is_none_or(|time| is_time(time, fold)) {
        return Err(malformed());
    }
    let state = PyBytes::new(py, bytes);
    let zone = matches!(tag, Tag::DateTimeUtc | Tag::TimeUtc).then_some(times.utc.as_ptr());
    // SAFETY: existing objects, and NULL after the last argument. Returns a new reference, or NULL with an exception
    // set.
    unsafe {
        Bound::from_owned_ptr_or_err(
            py,
            ffi::PyObject_CallFunctionObjArgs(
                class.as_ptr(),
                state.as_ptr(),
                zone.unwrap_or(ptr::null_mut()),
                ptr::null_mut::<ffi::PyObject>(),
            ),
        )
    }
}

fn is_date(bytes: &[u8]) -> bool {
    let &[century, year, month, day] = bytes else { return false };
    (1..=9999).contains(&u16::from_be_bytes([century, year]))
        && (1..=12).contains(&(month & 0x7f))
        && (1..=31).contains(&day)
}

fn is_time(bytes: &[u8], hours: u8) -> bool {
    let &[hour, minute, second, high, middle, low] = bytes else { return false };
    hour & hours < 24 && minute < 60 && second < 60 && u32::from_be_bytes([0, high, middle, low]) < 1_000_000
}

fn make_uuid(py: Python<'_>, number: u128) -> PyResult<Bound<'_, PyAny>> {
    let uuids = uuids(py)?;
    let number = from_digits(py, format!("{number:x}\0").as_bytes())?;
    // SAFETY: `object.__new__` of a class that does not define its own. The two attributes are set as by
    // `object.__setattr__`, because the method of the class raises. Failing calls set an exception.
    unsafe {
        let class = uuids.class.as_ptr().cast();
        let uuid = Bound::from_owned_ptr_or_err(py, (uuids.new)(class, uuids.no_args.as_ptr(), ptr::null_mut()))?;
        for (name, value) in [(&uuids.int, number.as_ptr()), (&uuids.is_safe, uuids.unknown.as_ptr())] {
            if ffi::PyObject_GenericSetAttr(uuid.as_ptr(), name.as_ptr(), value) != 0 {
                return Err(PyErr::fetch(py));
            }
        }
        Ok(uuid)
    }
}
