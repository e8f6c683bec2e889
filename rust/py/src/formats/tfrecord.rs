//! Reads examples from TFRecord files.

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};
use rustc_hash::FxHashSet;
use torchdata_core::formats::example::{Example, Feature, FeatureKind};
use torchdata_core::formats::tfrecord::{LONGEST, Records};

use crate::codec::array_of;

/// The number of bytes that are read at once, which fit into the processor's cache.
const PIECE: usize = 128 << 10;

/// Iterates over the examples in a stream of TFRecords, as dictionaries.
#[pyclass(module = "torchdata._native")]
pub struct TFRecordReader {
    records: Records,
    read: Py<PyAny>,
    maker: Maker,
    location: String,
}

#[pymethods]
impl TFRecordReader {
    /// `read(size)` returns the next bytes of the stream. `convert(array)` converts each array of a record, and
    /// `finish(example)` converts each dictionary of arrays. Record number `record` begins at byte `offset` of the
    /// file. `unread` contains the bytes from `offset` on that the caller has already read from the stream.
    #[new]
    #[pyo3(signature = (read, location, *, longest=LONGEST, wanted=None, convert=None, finish=None, verify=true, offset=0, record=0, unread=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        read: Py<PyAny>,
        location: String,
        longest: u64,
        wanted: Option<FxHashSet<String>>,
        convert: Option<Py<PyAny>>,
        finish: Option<Py<PyAny>>,
        verify: bool,
        offset: u64,
        record: u64,
        unread: Option<&[u8]>,
    ) -> Self {
        let mut records = Records::new(offset, record, verify, longest);
        records.feed(unread.unwrap_or_default());
        let maker = Maker { wanted, convert, finish, floats: Vec::new(), integers: Vec::new() };
        Self { records, read, maker, location }
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        loop {
            match self.records.peek() {
                Ok(Some(data)) => {
                    let item = self.maker.item(py, data).map_err(|error| self.explained(py, error))?;
                    self.records.advance();
                    return Ok(Some(item));
                }
                Ok(None) => {}
                Err(error) => return Err(self.explained(py, fault(error))),
            }
            if !self.fill(py)? {
                return self.records.finish().map(|()| None).map_err(|error| self.explained(py, fault(error)));
            }
        }
    }

    #[getter]
    fn offset(&self) -> u64 {
        self.records.offset
    }

    #[getter]
    fn record(&self) -> u64 {
        self.records.record
    }

    #[getter]
    fn unread<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.records.unread())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.read)?;
        visit.call(&self.maker.convert)?;
        visit.call(&self.maker.finish)
    }
}

impl TFRecordReader {
    fn fill(&mut self, py: Python<'_>) -> PyResult<bool> {
        let piece = self.read.bind(py).call1((PIECE,))?;
        let (location, found) = (&self.location, piece.get_type().name()?);
        let bytes = piece.extract::<PyBackedBytes>().map_err(|_| {
            PyTypeError::new_err(format!(
                "{location}: its stream returns {found} instead of bytes; open the file in binary mode"
            ))
        })?;
        self.records.feed(&bytes);
        Ok(!bytes.is_empty())
    }

    fn explained(&self, py: Python<'_>, error: PyErr) -> PyErr {
        if !error.get_type(py).is(py.get_type::<PyRuntimeError>()) {
            return error;
        }
        let (offset, record) = (self.records.offset, self.records.record);
        let what = error.value(py);
        let explained = fault(format!("{}, record {record} at byte {offset}: {what}", self.location));
        if error.traceback(py).is_some() {
            explained.set_cause(py, Some(error)); // an error with a traceback comes from Python code
        }
        explained
    }
}

fn fault(error: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

struct Maker {
    wanted: Option<FxHashSet<String>>,
    convert: Option<Py<PyAny>>,
    finish: Option<Py<PyAny>>,
    floats: Vec<f32>,
    integers: Vec<i64>,
}

impl Maker {
    fn item<'py>(&mut self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let wanted = self.wanted.as_ref();
        let example = Example::parse(data, |name| wanted.is_none_or(|names| names.contains(name))).map_err(fault)?;
        let dict = self.dict(py, &example)?;
        match &self.finish {
            Some(finish) => finish.bind(py).call1((dict,)),
            None => Ok(dict.into_any()),
        }
    }

    fn dict<'py>(&mut self, py: Python<'py>, example: &Example<'_>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, feature) in &example.context {
            dict.set_item(name, self.values(py, name, feature)?)?;
        }
        if example.lists.is_empty() {
            return Ok(dict);
        }
        let context: FxHashSet<&str> = example.context.iter().map(|(name, _)| *name).collect();
        for (name, steps) in &example.lists {
            if context.contains(name) {
                if self.wanted.is_some() {
                    continue; // a feature in the context hides a feature list with the same name
                }
                return Err(fault(format!(
                    "the key {name:?} is contained in both its context and its feature lists; request the feature of \
                     the context by a spec"
                )));
            }
            let values = steps.iter().map(|step| self.values(py, name, step)).collect::<PyResult<Vec<_>>>()?;
            dict.set_item(name, PyList::new(py, values)?)?;
        }
        Ok(dict)
    }

    fn values<'py>(&mut self, py: Python<'py>, name: &str, feature: &Feature<'_>) -> PyResult<Bound<'py, PyAny>> {
        let array = match feature.kind {
            Some(FeatureKind::Bytes) => {
                let values = feature.parts.iter().map(|bytes| PyBytes::new(py, bytes));
                return Ok(PyList::new(py, values)?.into_any());
            }
            Some(FeatureKind::Float) => {
                feature.floats(&mut self.floats).map_err(fault)?;
                array_of(py, &self.floats)?
            }
            Some(FeatureKind::Int64) => {
                feature.integers(&mut self.integers).map_err(fault)?;
                array_of(py, &self.integers)?
            }
            None => {
                return Err(fault(format!(
                    "its feature {name:?} does not contain a list of bytes, floats or integers"
                )));
            }
        };
        match &self.convert {
            Some(convert) => convert.bind(py).call1((array,)),
            None => Ok(array),
        }
    }
}
