//! Provides the Python class `Carrier`, which exchanges the messages of links with another machine.
//!
//! No thread waits for the GIL while holding the lock of a `Carrier`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use torchdata_core::link::carrier::{Carrier, Frame, Words};
use torchdata_core::link::consumer::Buffer;
use torchdata_core::process::board::BellRef;

use super::links::{PyBellBoard, PyLink, bell};
use super::waiting::wait_until;
use crate::buffers::LeasedBuffer;
use crate::errors;
use crate::seconds::duration;

#[pyclass(frozen, name = "Carrier", module = "torchdata._native")]
pub struct PyCarrier {
    carrier: Mutex<Carrier>,
    own: BellRef,
    rung: AtomicBool,
}

impl PyCarrier {
    fn held(&self) -> MutexGuard<'_, Carrier> {
        self.carrier.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyCarrier {
    /// `own` and `peer` are the indices in `board` of the carrier and of the process that uses the links.
    #[new]
    fn new(
        inbound: &Bound<'_, PyLink>,
        outbound: &Bound<'_, PyLink>,
        board: &Bound<'_, PyBellBoard>,
        own: usize,
        peer: usize,
    ) -> PyResult<Self> {
        let carrier = Carrier::new(&inbound.get().0, &outbound.get().0, bell(board, peer)?).map_err(errors::open)?;
        Ok(Self { carrier: Mutex::new(carrier), own: bell(board, own)?, rung: AtomicBool::new(false) })
    }

    /// Returns the control words (None if unchanged) and a frame, which is a list of a head and large buffers.
    fn take<'py>(&self, py: Python<'py>, most: usize) -> PyResult<(Option<Words>, Bound<'py, PyList>)> {
        let (words, frame) = py
            .detach(|| {
                let mut frame = Frame::default();
                let words = self.held().take(&mut frame, most);
                words.map(|words| (words, frame))
            })
            .map_err(errors::take)?;
        let parts = PyList::empty(py);
        if !frame.head.is_empty() {
            parts.append(PyBytes::new(py, &frame.head))?;
        }
        for buffer in frame.buffers {
            match buffer {
                Buffer::Leased(lease) => parts.append(Bound::new(py, LeasedBuffer(lease))?)?,
                Buffer::Owned(bytes) => parts.append(PyBytes::new(py, &bytes))?,
            }
        }
        Ok((words, parts))
    }

    /// Sends the messages of a frame. If the link is full, returns False, and the caller must pass the same frame in
    /// the next call of `put`.
    fn put(&self, py: Python<'_>, frame: Vec<PyBuffer<u8>>) -> PyResult<bool> {
        let mut parts = Vec::with_capacity(frame.len());
        for buffer in &frame {
            if !buffer.is_c_contiguous() {
                return Err(PyBufferError::new_err("a part of a frame is not contiguous"));
            }
            // SAFETY: this function holds the contiguous buffer until it returns. No code changes a frame.
            parts.push(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) });
        }
        let Some((head, buffers)) = parts.split_first() else { return Ok(true) };
        py.detach(|| self.held().put(head, buffers)).map_err(errors::corrupted)
    }

    fn put_words(&self, py: Python<'_>, words: Vec<u64>) -> PyResult<()> {
        let words = Words::try_from(words).map_err(|_| PyValueError::new_err("there are four words"))?;
        py.detach(|| self.held().put_words(words));
        Ok(())
    }

    /// Waits up to `seconds`, and then returns unused memory of the arena to the operating system. The wait ends early
    /// if a control word changes or `ring` is called. If `messages` is true, an arriving message also ends the wait. If
    /// `lacks` is true, free space for a partly sent frame also ends the wait.
    fn wait(&self, py: Python<'_>, seconds: f64, messages: bool, lacks: bool) -> PyResult<()> {
        let (began, limit) = (Instant::now(), duration(seconds));
        let ready = || {
            if self.rung.swap(false, Relaxed) || began.elapsed() >= limit {
                return true;
            }
            let mut carrier = self.held();
            carrier.has_news(messages) || lacks && carrier.has_room()
        };
        wait_until(py, &self.own, None, ready, |_| Ok(()))?;
        py.detach(|| self.held().tidy(Instant::now())).map_err(errors::corrupted)
    }

    fn ring(&self) {
        self.rung.store(true, Relaxed);
        self.own.ring();
    }
}
