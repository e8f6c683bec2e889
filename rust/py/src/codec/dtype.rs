//! The dtypes whose elements cross as they lie in memory, and how they are named on the way.

use std::ffi::c_int;

use numpy::npyffi::PyArray_Descr;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::malformed;
use crate::numpy_api::numpy;

/// A native dtype of numbers or times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dtype {
    /// NumPy's number of it.
    number: u8,
    /// Of times, what one step is.
    unit: Option<Unit>,
}

/// NumPy's number of a unit of time, and how many of it make a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unit {
    base: u32,
    count: i32,
}

impl Unit {
    /// Years, months and weeks, days to attoseconds, and no unit in particular. There is no third.
    fn is_known(self) -> bool {
        matches!(self.base, 0..=2 | 4..=14) && self.count > 0
    }
}

/// Booleans, integers, floats and complex numbers.
fn is_number(number: c_int) -> bool {
    matches!(number, 0..=16 | 23)
}

/// `datetime64` and `timedelta64`.
fn is_time(number: c_int) -> bool {
    matches!(number, 21 | 22)
}

/// Most bytes of an element: a complex number of two `long double`s, which have 8 to 16 bytes.
pub const LARGEST: usize = 32;

fn size_of(py: Python<'_>, descr: *const PyArray_Descr) -> Option<usize> {
    // SAFETY: callers pass the descriptor of a live object, and a built-in one.
    let size = unsafe { numpy(py).ok()?.item_size(descr.cast()) };
    usize::try_from(size).ok().filter(|&size| size <= LARGEST)
}

impl Dtype {
    /// The dtype behind a descriptor, and the bytes of an element as NumPy counts them; None if pickle should have
    /// it.
    pub fn of(py: Python<'_>, descr: *const PyArray_Descr) -> Option<(Self, usize)> {
        // SAFETY: callers pass the descriptor of a live object.
        let fields = unsafe { &(*descr).fields };
        let number = fields.type_num;
        if !(is_number(number) || is_time(number)) || !matches!(fields.byteorder as u8, b'=' | b'|') {
            return None;
        }
        // SAFETY: the descriptor of a live object, and a built-in one.
        if unsafe { numpy(py).ok()?.has_metadata(descr.cast()) } {
            return None; // which pickle keeps
        }
        let mut unit = None;
        if is_time(number) {
            // SAFETY: the descriptor of a dtype of times.
            let metadata = unsafe { numpy(py).ok()?.unit_of(descr.cast()).as_ref() };
            let meta = metadata?.meta;
            unit = Some(Unit { base: meta.base as u32, count: meta.num }).filter(|unit| unit.is_known());
            unit?;
        }
        Some((Self { number: u8::try_from(number).ok()?, unit }, size_of(py, descr)?))
    }

    /// The dtype of numbers that NumPy numbers so, and the bytes of an element; None if there is none, or not of
    /// numbers.
    pub fn of_number(py: Python<'_>, number: c_int) -> PyResult<Option<(Self, usize)>> {
        if !is_number(number) {
            return Ok(None);
        }
        let dtype = Self { number: number as u8, unit: None };
        dtype.descriptor(py).map(|(_, size)| Some((dtype, size)))
    }

    /// The dtype of numbers that NumPy numbers so.
    pub const fn number(number: u8) -> Self {
        Self { number, unit: None }
    }

    /// Appends the name under which it travels.
    pub fn write(self, payload: &mut Vec<u8>) {
        payload.push(self.number);
        if let Some(Unit { base, count }) = self.unit {
            payload.extend_from_slice(&base.to_le_bytes());
            payload.extend_from_slice(&count.to_le_bytes());
        }
    }

    /// Takes a name from bytes that `take` hands out; they are not trusted.
    pub fn read<'a>(mut take: impl FnMut(usize) -> PyResult<&'a [u8]>) -> PyResult<Self> {
        let number = take(1)?[0];
        let mut unit = None;
        if is_time(number.into()) {
            let mut word = || take(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            unit = Some(Unit { base: word()?, count: word()? as i32 }).filter(|unit| unit.is_known());
            unit.ok_or_else(malformed)?;
        }
        (is_number(number.into()) || unit.is_some()).then_some(Self { number, unit }).ok_or_else(malformed)
    }

    /// NumPy's descriptor, and the bytes of an element.
    pub fn descriptor(self, py: Python<'_>) -> PyResult<(Bound<'_, PyAny>, usize)> {
        let number = c_int::from(self.number);
        let numpy = numpy(py)?;
        // SAFETY: the number is that of a built-in dtype. One with a unit is an object of its own, which nobody else
        // has read yet, and has the form that dtypes of times have.
        let descr = unsafe {
            let descr = numpy.dtype(py, number, self.unit.is_some())?;
            if let Some(unit) = self.unit {
                let metadata = numpy.unit_of(descr.as_ptr().cast());
                if metadata.is_null() {
                    return Err(PyValueError::new_err("this NumPy keeps the units of times elsewhere"));
                }
                (&raw mut (*metadata).meta.base).cast::<u32>().write(unit.base);
                (*metadata).meta.num = unit.count;
            }
            descr
        };
        let size = size_of(py, descr.as_ptr().cast());
        size.map(|size| (descr, size)).ok_or_else(|| PyValueError::new_err("an element of this NumPy is too large"))
    }
}
