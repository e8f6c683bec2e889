//! Encodes NumPy dtypes, if elements of the dtype can be sent as their bytes in memory.

use std::ffi::c_int;

use numpy::npyffi::PyArray_Descr;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::malformed;
use crate::numpy_api::numpy;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dtype {
    number: u8,
    unit: Option<TimeUnit>,
}

/// The unit of a `datetime64` or `timedelta64` dtype, which consists of NumPy's number for a base unit and a
/// multiplier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TimeUnit {
    base: u32,
    count: i32,
}

impl TimeUnit {
    /// NumPy numbers the units of dates and times (years, months, …) from 0 to 14, but does not use 3.
    fn is_known(self) -> bool {
        matches!(self.base, 0..=2 | 4..=14) && self.count > 0
    }
}

fn is_number(number: c_int) -> bool {
    matches!(number, 0..=16 | 23)
}

fn is_time(number: c_int) -> bool {
    matches!(number, 21 | 22)
}

/// The maximum number of bytes of an element. A complex number consists of two `long double`s with up to 16 bytes each.
pub const LARGEST: usize = 32;

fn size_of(py: Python<'_>, descr: *const PyArray_Descr) -> Option<usize> {
    // SAFETY: callers pass the built-in descriptor of an existing array or scalar.
    let size = unsafe { numpy(py).ok()?.item_size(descr.cast()) };
    usize::try_from(size).ok().filter(|&size| size <= LARGEST)
}

impl Dtype {
    pub fn of(py: Python<'_>, descr: *const PyArray_Descr) -> Option<(Self, usize)> {
        // SAFETY: callers pass the descriptor of an existing array or scalar.
        let fields = unsafe { &(*descr).fields };
        let number = fields.type_num;
        if !(is_number(number) || is_time(number)) || !matches!(fields.byteorder as u8, b'=' | b'|') {
            return None;
        }
        // SAFETY: `descr` belongs to an existing object, and its type number shows that it is a built-in descriptor.
        if unsafe { numpy(py).ok()?.has_metadata(descr.cast()) } {
            return None; // such arrays are pickled, because only pickle preserves metadata
        }
        let mut unit = None;
        if is_time(number) {
            // SAFETY: the type number shows that `descr` describes a `datetime64` or `timedelta64` dtype.
            let metadata = unsafe { numpy(py).ok()?.unit_of(descr.cast()).as_ref() };
            let meta = metadata?.meta;
            unit = Some(TimeUnit { base: meta.base as u32, count: meta.num }).filter(|unit| unit.is_known());
            unit?;
        }
        Some((Self { number: u8::try_from(number).ok()?, unit }, size_of(py, descr)?))
    }

    pub fn of_number(py: Python<'_>, number: c_int) -> PyResult<Option<(Self, usize)>> {
        if !is_number(number) {
            return Ok(None);
        }
        let dtype = Self { number: number as u8, unit: None };
        dtype.descriptor(py).map(|(_, size)| Some((dtype, size)))
    }

    pub const fn number(number: u8) -> Self {
        Self { number, unit: None }
    }

    pub fn write(self, payload: &mut Vec<u8>) {
        payload.push(self.number);
        if let Some(TimeUnit { base, count }) = self.unit {
            payload.extend_from_slice(&base.to_le_bytes());
            payload.extend_from_slice(&count.to_le_bytes());
        }
    }

    /// Reads a dtype. `take(n)` returns the next n bytes of the encoded item.
    pub fn read<'a>(mut take: impl FnMut(usize) -> PyResult<&'a [u8]>) -> PyResult<Self> {
        let number = take(1)?[0];
        let mut unit = None;
        if is_time(number.into()) {
            let mut word = || take(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            unit = Some(TimeUnit { base: word()?, count: word()? as i32 }).filter(|unit| unit.is_known());
            unit.ok_or_else(malformed)?;
        }
        (is_number(number.into()) || unit.is_some()).then_some(Self { number, unit }).ok_or_else(malformed)
    }

    pub fn descriptor(self, py: Python<'_>) -> PyResult<(Bound<'_, PyAny>, usize)> {
        let number = c_int::from(self.number);
        let numpy = numpy(py)?;
        // SAFETY: `self.number` is the number of a built-in dtype. If `self.unit` is set, `descr` is a new `datetime64`
        // or `timedelta64` dtype, which no other code uses yet.
        let descr = unsafe {
            let descr = numpy.dtype(py, number, self.unit.is_some())?;
            if let Some(unit) = self.unit {
                let metadata = numpy.unit_of(descr.as_ptr().cast());
                if metadata.is_null() {
                    return Err(PyValueError::new_err("this version of NumPy stores the units of datetimes elsewhere"));
                }
                (&raw mut (*metadata).meta.base).cast::<u32>().write(unit.base);
                (*metadata).meta.num = unit.count;
            }
            descr
        };
        let size = size_of(py, descr.as_ptr().cast());
        size.map(|size| (descr, size)).ok_or_else(|| PyValueError::new_err("an element of this dtype is too large"))
    }
}
