//! Decompresses gzip streams without the GIL. A Python stream provides the compressed bytes.

use std::io::{BufRead, Error, ErrorKind, Read};

use flate2::bufread::GzDecoder;
use pyo3::exceptions::{PyEOFError, PyOSError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const PIECE: usize = 64 << 10;
const MOST: usize = 256 << 10;

const FIRST: u8 = 0x1f;

/// Decompresses a gzip file, which may have several members, with zeros between the members and after the last member.
#[pyclass(module = "torchdata._native")]
pub struct GzipReader {
    decoder: Option<GzDecoder<GzipSource>>,
    /// After the last gzip member, this field keeps the source of the compressed bytes. Dropping the source without the
    /// GIL would make PyO3 take a lock, which a forked child could inherit in locked state.
    ended: Option<GzipSource>,
    buffer: Vec<u8>,
    /// An error in the stream, which is raised once the bytes before the error have been returned.
    failed: Option<Error>,
}

#[pymethods]
impl GzipReader {
    /// Creates a reader for the bytes that the function `read(size)` returns.
    #[new]
    fn new(read: Py<PyAny>) -> Self {
        let source = GzipSource { read, piece: Vec::new(), taken: 0 };
        Self { decoder: Some(GzDecoder::new(source)), ended: None, buffer: vec![0; MOST], failed: None }
    }

    /// Returns the available decompressed bytes (at least one), or no bytes at the end.
    fn read<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let count = self.failed.take().map_or_else(|| py.detach(|| self.fill()), Err);
        self.ended = None;
        Ok(PyBytes::new(py, &self.buffer[..count.map_err(raised)?]))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.decoder.as_ref().map(|decoder| &decoder.get_ref().read))
    }
}

impl GzipReader {
    fn fill(&mut self) -> Result<usize, Error> {
        let mut count = 0;
        while count < self.buffer.len() && (count == 0 || self.has_more_at_once()) {
            match self.inflate(count) {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(error) if count == 0 => return Err(error),
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        Ok(count)
    }

    fn has_more_at_once(&self) -> bool {
        self.decoder.as_ref().is_some_and(|decoder| !decoder.get_ref().is_drained())
    }

    fn inflate(&mut self, begin: usize) -> Result<usize, Error> {
        while let Some(mut decoder) = self.decoder.take() {
            let count = decoder.read(&mut self.buffer[begin..]);
            if !matches!(count, Ok(0)) {
                self.decoder = Some(decoder);
                return count;
            }
            let mut stream = decoder.into_inner();
            let another = another_member(&mut stream);
            if matches!(another, Ok(true)) {
                self.decoder = Some(GzDecoder::new(stream));
            } else {
                self.ended = Some(stream);
            }
            another?;
        }
        Ok(0)
    }
}

/// Like gzip(1), this function skips zeros after a gzip member, and ignores any other data that does not begin a
/// member.
fn another_member(stream: &mut impl BufRead) -> Result<bool, Error> {
    loop {
        let bytes = stream.fill_buf()?;
        if bytes.is_empty() {
            return Ok(false);
        }
        if let Some(&first) = bytes.iter().find(|&&byte| byte != 0) {
            let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
            stream.consume(zeros);
            return Ok(first == FIRST);
        }
        let zeros = bytes.len();
        stream.consume(zeros);
    }
}

struct GzipSource {
    read: Py<PyAny>,
    piece: Vec<u8>,
    taken: usize,
}

impl GzipSource {
    fn is_drained(&self) -> bool {
        self.taken == self.piece.len()
    }

    fn refill(&mut self) -> PyResult<()> {
        Python::attach(|py| {
            let piece = self.read.bind(py).call1((PIECE,))?;
            let bytes = piece.cast::<PyBytes>().map_err(|_| {
                let found = piece.get_type();
                PyTypeError::new_err(format!("a compressed stream must return bytes, but it returned {found}"))
            })?;
            self.piece.clear();
            self.piece.extend_from_slice(bytes.as_bytes());
            self.taken = 0;
            Ok(())
        })
    }
}

impl BufRead for GzipSource {
    fn fill_buf(&mut self) -> Result<&[u8], Error> {
        if self.is_drained() {
            self.refill().map_err(Error::other)?;
        }
        Ok(&self.piece[self.taken..])
    }

    fn consume(&mut self, count: usize) {
        self.taken += count;
    }
}

impl Read for GzipSource {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let count = self.fill_buf()?.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

fn raised(error: Error) -> PyErr {
    let kind = error.kind();
    match error.downcast::<PyErr>() {
        Ok(raised) => raised,
        Err(_) if kind == ErrorKind::UnexpectedEof => {
            PyEOFError::new_err("the compressed stream ends before its end-of-stream marker")
        }
        Err(error) => PyOSError::new_err(format!("not a valid gzip stream: {error}")),
    }
}
