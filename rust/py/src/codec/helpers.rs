//! The Python functions and types that the codec needs, looked up once.

use std::sync::{Mutex, PoisonError};

use once_cell::race::OnceBox;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

/// Functions of `torchdata._engine.items.codec` and, for tensors, of `torchdata._engine.items.tensors`.
pub struct Helpers {
    /// obj -> (pickle, [buffers], [where its tensors lie])
    pub pickled_parts: Py<PyAny>,
    /// (pickle, [buffers]) -> obj
    pub loads: Py<PyAny>,
    /// () -> (table of functions or None, function to a capsule, function from a capsule)
    pub dlpack_ways: Py<PyAny>,
    /// (tensor, address) -> the array of `torchdata.empty` that it alone lies in, or None
    pub room_of: Py<PyAny>,
    /// tensor -> (where it lies, parts or something to pickle)
    pub tensor_parts: Py<PyAny>,
    /// (dtype name, shape, requires_grad, buffer) -> tensor
    pub tensor_over: Py<PyAny>,
    /// type -> whether users said how its objects are to be pickled
    pub has_own_reducer: Py<PyAny>,
    /// The batch class.
    pub data_chunk: Py<PyType>,
}

/// The helpers, looked up by the first call.
///
/// FORK: no lock. Threads that are first at the same time both look up, and the first to be done is believed. The
/// module that makes loaders (`torchdata._engine.workers.child`) imports them, so that nobody forks in the middle of that.
pub fn helpers(py: Python<'_>) -> PyResult<&'static Helpers> {
    static HELPERS: OnceBox<Helpers> = OnceBox::new();
    HELPERS.get_or_try_init(|| {
        let module = PyModule::import(py, "torchdata._engine.items.codec")?;
        let get = |name| module.getattr(name).map(Bound::unbind);
        let tensors = PyModule::import(py, "torchdata._engine.items.tensors")?;
        Ok(Box::new(Helpers {
            pickled_parts: get("pickled_parts")?,
            loads: get("loads")?,
            dlpack_ways: tensors.getattr("dlpack_ways")?.unbind(),
            room_of: tensors.getattr("room_of")?.unbind(),
            tensor_parts: tensors.getattr("tensor_parts")?.unbind(),
            tensor_over: tensors.getattr("tensor_over")?.unbind(),
            has_own_reducer: get("has_own_reducer")?,
            data_chunk: module.getattr("DataChunk")?.cast_into::<PyType>()?.unbind(),
        }))
    })
}

/// The codec's view of an object, by its exact type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Array,
    NumpyScalar,
    Tensor,
    DataChunk,
    DateTime,
    Date,
    Time,
    TimeDelta,
    Uuid,
    Other,
}

/// Types seen so far. They are kept alive, so that an address is never taken for that of a type that died.
///
/// FORK: locked with the GIL held alone, and never while Python code runs; Python forks with the GIL held.
static SEEN: Mutex<Vec<(usize, Kind)>> = Mutex::new(Vec::new());

/// The kind of an object that is of no built-in type.
pub fn kind_of(object: &Bound<'_, PyAny>) -> PyResult<Kind> {
    // SAFETY: reads the type of a live object.
    let pointer = unsafe { ffi::Py_TYPE(object.as_ptr()) } as usize;
    let known = |seen: &Vec<(usize, Kind)>| seen.iter().find(|entry| entry.0 == pointer).map(|entry| entry.1);
    if let Some(kind) = known(&SEEN.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(kind);
    }
    let kind = classify(object)?;
    if kind != Kind::Other {
        std::mem::forget(object.get_type()); // one reference for ever, as promised above
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).push((pointer, kind));
    }
    Ok(kind)
}

fn classify(object: &Bound<'_, PyAny>) -> PyResult<Kind> {
    let py = object.py();
    let class = object.get_type();
    if class.is(helpers(py)?.data_chunk.bind(py)) {
        return Ok(Kind::DataChunk);
    }
    let module = class.getattr("__module__")?;
    let Ok(module) = module.cast::<PyString>() else { return Ok(Kind::Other) };
    let (module, name) = (module.to_string_lossy(), class.name()?);
    let name = name.to_string_lossy();
    let is = |module: &str| PyModule::import(py, module)?.getattr(&*name).map(|found| found.is(&class));
    let kind = match (&*module, &*name) {
        ("numpy", "ndarray") if is("numpy")? => Kind::Array,
        ("numpy", _) if class.is_subclass(&PyModule::import(py, "numpy")?.getattr("generic")?)? => Kind::NumpyScalar,
        ("torch", "Tensor") if is("torch")? => Kind::Tensor,
        ("datetime", "datetime") if is("datetime")? => Kind::DateTime,
        ("datetime", "date") if is("datetime")? => Kind::Date,
        ("datetime", "time") if is("datetime")? => Kind::Time,
        ("datetime", "timedelta") if is("datetime")? => Kind::TimeDelta,
        ("uuid", "UUID") if is("uuid")? => Kind::Uuid,
        _ => return Ok(Kind::Other),
    };
    let own_way = helpers(py)?.has_own_reducer.bind(py).call1((class,))?.is_truthy()?;
    Ok(if own_way { Kind::Other } else { kind })
}
