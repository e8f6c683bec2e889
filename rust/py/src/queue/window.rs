//! Determines how many items a queue reads ahead, and which items are small.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// After `GROWTH` consecutive small items, the queue reads one more item ahead.
const GROWTH: u64 = 8;

/// The number of items to read ahead depends only on the delivered items, so that an abandoned epoch always leaves the
/// source at the same position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    least: usize,
    most: usize,
    pub row: u64,
    /// The total number of items that may be taken from the source before the next delivery.
    reach: u64,
}

impl Window {
    /// Creates a window after `received` delivered items, when at most `ahead` undelivered items have been taken from
    /// the source.
    pub fn new(least: usize, most: usize, row: u64, received: u64, ahead: u64) -> Self {
        let mut window = Self { least, most: most.max(least), row, reach: 0 };
        window.reach = received.saturating_add(ahead.min(window.most as u64).max(window.size() as u64));
        window
    }

    pub fn size(&self) -> usize {
        usize::try_from(self.row / GROWTH).map_or(self.most, |size| size.clamp(self.least, self.most))
    }

    pub fn note(&mut self, is_small: bool, received: u64) {
        let before = self.size();
        self.row = if is_small { self.row.saturating_add(1) } else { 0 };
        self.reach = self.reach.max(received.saturating_add(before.max(self.size()) as u64));
    }

    pub fn ahead_of(&self, received: u64) -> u64 {
        self.reach.saturating_sub(received)
    }
}

const SHORT: ffi::Py_ssize_t = 256;
const MOST_MEMBERS: usize = 16;

/// Returns whether an object is small and immutable, so that workers can process many such objects together.
pub(super) fn is_small(object: &Bound<'_, PyAny>) -> bool {
    let is_member = |object: &Bound<'_, PyAny>| {
        let pointer = object.as_ptr();
        // SAFETY: `pointer` is an existing object. The type of the object is checked before each call of a function
        // that requires this type.
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
        Ok(tuple) => tuple.len() <= MOST_MEMBERS && tuple.iter_borrowed().all(|member| is_member(&member)),
        Err(_) => is_member(object),
    }
}
