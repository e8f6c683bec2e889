//! How far is read ahead, and which items are small enough for that to be far.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// One more item is read ahead for so many small ones that were given in a row.
const GROWTH: u64 = 8;

/// How far is read ahead: farther, the more small items were given in a row. That follows from what was given alone, as does
/// the place to which the source is read on where an epoch is left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    least: usize,
    most: usize,
    /// How many small items were given since one that was not.
    pub row: u64,
    /// The greatest number of items that may have been taken from the source.
    reach: u64,
}

impl Window {
    /// A window between `least` and `most`, where `ahead` more items may have been taken than were `given`.
    pub fn new(least: usize, most: usize, row: u64, given: u64, ahead: u64) -> Self {
        let mut window = Self { least, most: most.max(least), row, reach: 0 };
        window.reach = given.saturating_add(ahead.min(window.most as u64).max(window.size() as u64));
        window
    }

    pub fn size(&self) -> usize {
        usize::try_from(self.row / GROWTH).map_or(self.most, |size| size.clamp(self.least, self.most))
    }

    /// Notes that an item is given, with which there are `given`. Its slot was free before the size changes.
    pub fn note(&mut self, is_small: bool, given: u64) {
        let before = self.size();
        self.row = if is_small { self.row.saturating_add(1) } else { 0 };
        self.reach = self.reach.max(given.saturating_add(before.max(self.size()) as u64));
    }

    /// How many more items may have been taken than were given.
    pub fn ahead_of(&self, given: u64) -> u64 {
        self.reach.saturating_sub(given)
    }
}

/// Strings up to this length are small.
const SHORT: ffi::Py_ssize_t = 256;
/// Tuples of so many such members are.
const FEW: usize = 16;

/// Whether an object takes little memory, and nobody can change it: then many may be read ahead, and go together.
pub(super) fn is_small(object: &Bound<'_, PyAny>) -> bool {
    let is_member = |object: &Bound<'_, PyAny>| {
        let pointer = object.as_ptr();
        // SAFETY: looks at live objects of exact types, which cannot fail.
        unsafe {
            object.is_none()
                || ffi::PyFloat_CheckExact(pointer) != 0
                || ffi::PyBool_Check(pointer) != 0
                || ffi::PyUnicode_CheckExact(pointer) != 0 && ffi::PyUnicode_GetLength(pointer) <= SHORT
                || ffi::PyBytes_CheckExact(pointer) != 0 && ffi::PyBytes_Size(pointer) <= SHORT
                || ffi::PyLong_CheckExact(pointer) != 0 && {
                    let mut overflow = 0;
                    ffi::PyLong_AsLongLongAndOverflow(pointer, &mut overflow);
                    overflow == 0
                }
        }
    };
    match object.cast_exact::<PyTuple>() {
        Ok(tuple) => tuple.len() <= FEW && tuple.iter_borrowed().all(|member| is_member(&member)),
        Err(_) => is_member(object),
    }
}
