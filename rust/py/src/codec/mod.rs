//! Encodes an item as a payload (a tree of tagged small values) and separate large buffers.
//!
//! ```text
//! item    := tag value
//! value   := nothing | i64 | f64 | len bytes | len item* | …   (see Tag; numbers in a row are a block: `numbers`)
//! bulk    := 0 len bytes | 1 index                              (index of an out-of-band buffer)
//! ```
//!
//! The encoder supports exact built-in types, ints of at most 64 bits, plain NumPy arrays and scalars, plain CPU
//! tensors of torch, and the batch class of torchdata. Objects of all other types are pickled (protocol 5, with
//! out-of-band buffers), if necessary by cloudpickle. A long string is sent once, and its later occurrences are sent as
//! references. If an item contains any other object twice, the whole item is pickled to preserve the object's identity.

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

/// The minimum number of bytes of a buffer that is sent out of band, which means outside of the payload. For smaller
/// buffers, copying twice is cheaper than a lease.
pub const OUT_OF_BAND: usize = 8 << 10;
/// The maximum number of out-of-band buffers per item. Further buffers are sent inline, which means in the payload.
pub const MOST_BUFFERS: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    None,
    False,
    True,
    /// Precedes an i64.
    Int,
    /// Precedes an f64.
    Float,
    /// Precedes UTF-8 text, which is a bulk.
    Str,
    /// Precedes bytes, which are a bulk.
    Bytes,
    /// Precedes the number of members, and the members.
    Tuple,
    List,
    /// Precedes the number of entries, and each key with its value.
    Dict,
    DataChunk,
    /// Precedes the dtype, the number of dimensions, the order of the axes, the shape, and the elements, which are a
    /// bulk.
    Array,
    /// Precedes the dtype, the length and the bytes of a scalar.
    Scalar,
    /// Precedes the element type, the number of dimensions, a flag for strides, the shape, the strides (if the flag is
    /// set), and the elements, which are a bulk.
    Tensor,
    /// Precedes a pickle, which is a bulk, the number of the pickle's buffers, and these buffers, which are bulks.
    Pickle,
    /// Precedes an object to which later parts of the item can refer by number. These objects are numbered from zero.
    Kept,
    /// Precedes the number of a `Kept` object that occurs again.
    Again,
    /// Precedes a u64, which represents an int that does not fit into an i64.
    Unsigned,
    /// Precedes a block of numbers: the tags of the container and of the elements, the length, and the values (see
    /// `numbers`).
    Numbers,
}

impl Tag {
    pub fn from_byte(byte: u8) -> Option<Self> {
        // SAFETY: the tags are numbered from 0 without gaps, and `Numbers` is the last tag.
        (byte <= Self::Numbers as u8).then(|| unsafe { std::mem::transmute(byte) })
    }
}
