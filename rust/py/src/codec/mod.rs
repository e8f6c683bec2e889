//! Encodes an item as a payload (a tree of tagged small values) and separate large buffers.
//!
//! ```text
//! item    := tag value
//! value   := nothing | i64 | f64 | len bytes | len item* | …   (see `Tag`, and `numbers` for blocks of numbers)
//! bulk    := 0 len bytes | 1 index                              (bytes, or the index of an out-of-band buffer)
//! ```
//!
//! Objects of unknown types are pickled (protocol 5, with out-of-band buffers), if necessary by cloudpickle. If an item
//! contains an object twice, the whole item is pickled to preserve the object's identity. A long string that occurs
//! several times is sent once.

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

/// The minimum number of bytes of a buffer that is sent separately from the payload. For smaller buffers, two copies
/// are cheaper than a lease of shared memory.
pub const OUT_OF_BAND: usize = 8 << 10;
/// The maximum number of buffers that are sent separately from the payload. All further buffers of an item are part of
/// the payload.
pub const MOST_BUFFERS: usize = 512;

/// The first byte of an encoded value. The comment of each tag lists what follows the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    None,
    False,
    True,
    /// An i64 follows.
    Int,
    /// An f64 follows.
    Float,
    /// UTF-8 text follows.
    Str,
    /// Bytes follow.
    Bytes,
    /// The number of members and the members follow.
    Tuple,
    List,
    /// The number of entries follows, and then each key with its value.
    Dict,
    DataChunk,
    /// The dtype, the number of dimensions, the order of the axes, the shape, and the elements follow.
    Array,
    /// The dtype, the length and the bytes of the scalar follow.
    Scalar,
    /// The element type, the number of dimensions, a flag for strides, the shape, the strides (only if the flag is
    /// set), and the elements follow.
    Tensor,
    /// The pickle, the number of its buffers, and the buffers follow.
    Pickle,
    /// An object follows. Later parts of the item can refer to this object by its number, where `Kept` objects are
    /// numbered from zero.
    Kept,
    /// The number of an earlier `Kept` object follows, which occurs here again.
    Again,
    /// A u64 follows, which represents an int that does not fit into an i64.
    Unsigned,
    /// The tags of the container and of the elements, the length, and the values follow (see `numbers`).
    Numbers,
}

impl Tag {
    pub fn from_byte(byte: u8) -> Option<Self> {
        // SAFETY: the tags are numbered from 0 without gaps, and `Numbers` is the last tag.
        (byte <= Self::Numbers as u8).then(|| unsafe { std::mem::transmute(byte) })
    }
}
