//! Writes a nested value as text. The checksums of states are checksums of such texts.

use std::fmt::Write;

use pyo3::exceptions::PyRecursionError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyTuple};

/// The maximum depth of nested values. The states of loaders have a depth of less than 20.
const DEEPEST: usize = 200;

/// Returns the same text for a list and for a tuple, because some programs convert tuples to lists when they save a
/// state. `of_bytes` returns the bytes that stand for a bytes object.
#[pyfunction]
pub fn words_of(value: &Bound<'_, PyAny>, of_bytes: &Bound<'_, PyAny>) -> PyResult<String> {
    let mut words = String::with_capacity(1024);
    add(value, of_bytes, &mut words, DEEPEST)?;
    Ok(words)
}

fn add(value: &Bound<'_, PyAny>, of_bytes: &Bound<'_, PyAny>, words: &mut String, depth: usize) -> PyResult<()> {
    let depth = depth.checked_sub(1).ok_or_else(|| PyRecursionError::new_err("the value is nested too deeply"))?;
    let members = |length, words: &mut String| {
        let _ = write!(words, "[{length}]");
        value.try_iter()?.try_for_each(|part| add(&part?, of_bytes, words, depth))
    };
    if let Ok(list) = value.cast::<PyList>() {
        members(list.len(), words)
    } else if let Ok(tuple) = value.cast::<PyTuple>() {
        members(tuple.len(), words)
    } else if let Ok(dict) = value.cast::<PyDict>() {
        // A list of the items, because another thread may change the dict while `of_bytes` runs.
        dict.items().iter().try_for_each(|item| {
            let (name, part): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            words.push_str(&name.str()?.to_cow()?);
            words.push(':');
            add(&part, of_bytes, words, depth)
        })
    } else if value.is_instance_of::<PyBytes>() {
        let bytes = of_bytes.call1((value,))?;
        let digits = bytes.cast::<PyBytes>()?.as_bytes().iter().flat_map(|byte| [byte >> 4, byte & 15]);
        words.extend(digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
        Ok(())
    } else {
        let number = if value.is_exact_instance_of::<PyInt>() { value.extract::<i64>().ok() } else { None };
        match number {
            Some(number) => write!(words, "{number}").unwrap_or_default(),
            None => words.push_str(&value.repr()?.to_cow()?),
        }
        words.push(';');
        Ok(())
    }
}
