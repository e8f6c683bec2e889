//! Computes the same random orders as `random.Random(seed).sample(range(count), count)`, in 2 % of the time.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use torchdata_core::sampling::{MersenneTwister, WORDS};

/// Returns the numbers below `count` in random order, as native 32-bit integers.
///
/// `words` and `drawn` come from `random.Random.getstate()`: 624 words of 32 bits in native byte order, and the number
/// of used words.
#[pyfunction]
pub fn sample_order<'py>(py: Python<'py>, words: &[u8], drawn: usize, count: u32) -> PyResult<Bound<'py, PyBytes>> {
    if words.len() != 4 * WORDS {
        return Err(PyValueError::new_err(format!(
            "the state of a generator has {WORDS} words of 4 bytes, but got {} bytes",
            words.len()
        )));
    }
    let mut state = [0; WORDS];
    for (word, bytes) in state.iter_mut().zip(words.as_chunks::<4>().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    let order = py.detach(|| MersenneTwister::new(state, drawn).permutation(count));
    PyBytes::new_with(py, 4 * order.len(), |bytes| {
        for (target, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(order) {
            *target = number.to_ne_bytes();
        }
        Ok(())
    })
}
