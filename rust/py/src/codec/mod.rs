//! Encodes items: small values as an inline tree of tags, large buffers separately.
//!
//! ```text
//! item    := tag value
//! value   := nothing | i64 | f64 | len bytes | len item* | …   (see Tag; numbers in a row are a block: `numbers`)
//! bulk    := 0 len bytes | 1 index                              (index of an out-of-band buffer)
//! ```
//!
//! This module encodes exact built-in types, ints of at most 64 bits, plain NumPy arrays and scalars, plain CPU tensors
//! of torch, and the batch class of torchdata. Objects of further types are pickled (protocol 5, with out-of-band
//! buffers), if necessary by cloudpickle. The second occurrence of a long string is a reference to the first. If an
//! item contains any other object twice, the whole item is pickled to preserve the object's identity.

mod array;
mod decode;
mod dlpack;
mod dtype;
mod encode;
mod helpers;
mod numbers;
mod source;
mod tensor;

use pyo3::PyErr;
use pyo3::exceptions::PyRuntimeError;

pub use array::{array_of, empty_over};
pub use decode::decode;
pub use dtype::Dtype;
pub use encode::Encoder;
pub use source::{OutBuffer, Source};

pub fn malformed() -> PyErr {
    PyRuntimeError::new_err(
        "a received item is malformed, because the memory of its sender is corrupted; start a new loader",
    )
}

/// The minimum number of bytes of a buffer that is sent out of band, because a lease is cheaper than two copies.
pub const OUT_OF_BAND: usize = 8 << 10;
/// The maximum number of out-of-band buffers of an item. Further large parts are sent inline.
pub const MOST_BUFFERS: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    None,
    False,
    True,
    /// Followed by an i64.
    Int,
    /// Followed by an f64.
    Float,
    /// Followed by a bulk of UTF-8 text.
    Str,
    /// Followed by a bulk of bytes.
    Bytes,
    /// Followed by the number of members, and the members.
    Tuple,
    List,
    /// Followed by the number of entries, and each key and value.
    Dict,
    DataChunk,
    /// Followed by the dtype, the number of dimensions, the order of the axes, the shape, and a bulk of the elements.
    Array,
    /// Followed by the dtype, the length and the bytes of the scalar.
    Scalar,
    /// Followed by the element type, the number of dimensions, a flag for strides, the shape, the strides, and a bulk
    /// of the elements.
    Tensor,
    /// Followed by a bulk with the pickle, and the number and the bulks of the pickle's buffers.
    Pickle,
    /// Followed by an item to which later parts can refer by its number. Such items are numbered from zero.
    Kept,
    /// Followed by the number of the `Kept` item that occurs again.
    Again,
    /// Followed by a u64, for an int that does not fit into an i64.
    Unsigned,
    /// Followed by the tags of the container and of the elements, the length, and the values (see `numbers`).
    Numbers,
}

impl Tag {
    pub fn from_byte(byte: u8) -> Option<Self> {
        // SAFETY: the tags are numbered from 0, and `Numbers` is the last tag.
        (byte <= Self::Numbers as u8).then(|| unsafe { std::mem::transmute(byte) })
    }
}
