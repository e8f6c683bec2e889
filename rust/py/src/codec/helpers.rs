//! Looks up, once per process, the Python functions and types that the codec uses.

use std::sync::{Mutex, PoisonError};

use once_cell::race::OnceBox;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

pub struct Helpers {
    /// Pickles an object: `obj -> (pickle, [buffers], [memory ranges of the object's tensors])`.
    pub pickled_parts: Py<PyAny>,
    /// Unpickles an object: `(pickle, [buffers]) -> obj`.
    pub loads: Py<PyAny>,
    /// Looks up torch's interface to DLPack: `() -> (function table or None, function that exports a capsule, function
    /// that imports a capsule, torch.strided)`.
    pub dlpack_functions: Py<PyAny>,
    /// Returns the array from `torchdata.empty` that holds a tensor's memory; None if other objects may access this
    /// memory: `(tensor, address) -> array or None`.
    pub room_of: Py<PyAny>,
    /// Finds out whether user code defines how objects of a type are pickled: `type -> bool`.
    pub has_own_reducer: Py<PyAny>,
    pub data_chunk: Py<PyType>,
}

/// FORK: the look-up uses no lock, so a fork during the look-up does no harm.
pub fn helpers(py: Python<'_>) -> PyResult<&'static Helpers> {
    static HELPERS: OnceBox<Helpers> = OnceBox::new();
    HELPERS.get_or_try_init(|| {
        let module = PyModule::import(py, "torchdata._engine.items.codec")?;
        let get = |name| module.getattr(name).map(Bound::unbind);
        let tensors = PyModule::import(py, "torchdata._engine.items.tensors")?;
        Ok(Box::new(Helpers {
            pickled_parts: get("pickled_parts")?,
            loads: get("loads")?,
            dlpack_functions: tensors.getattr("dlpack_functions")?.unbind(),
            room_of: tensors.getattr("room_of")?.unbind(),
            has_own_reducer: get("has_own_reducer")?,
            data_chunk: module.getattr("DataChunk")?.cast_into::<PyType>()?.unbind(),
        }))
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Array,
    NumpyScalar,
    Tensor,
    DataChunk,
    Other,
}

/// The kind of each known Python type, by the address of the type.
///
/// FORK: threads lock this mutex only with the GIL held, and run no Python code before unlocking it. Python forks with
/// the GIL held, so a forked child never inherits the mutex in locked state.
static SEEN: Mutex<Vec<(usize, Kind)>> = Mutex::new(Vec::new());

pub fn kind_of(object: &Bound<'_, PyAny>) -> PyResult<Kind> {
    // SAFETY: `Py_TYPE` only reads the type of an existing object.
    let pointer = unsafe { ffi::Py_TYPE(object.as_ptr()) } as usize;
    let known = |seen: &Vec<(usize, Kind)>| seen.iter().find(|entry| entry.0 == pointer).map(|entry| entry.1);
    if let Some(kind) = known(&SEEN.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(kind);
    }
    let kind = classify(object)?;
    if kind != Kind::Other {
        std::mem::forget(object.get_type()); // this reference is never released, so the type is never freed
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
        _ => return Ok(Kind::Other),
    };
    let own_way = helpers(py)?.has_own_reducer.bind(py).call1((class,))?.is_truthy()?;
    Ok(if own_way { Kind::Other } else { kind })
}
