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
//! several times in an item is sent only once.

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

/// The minimum number of bytes of a buffer that is sent separately from the payload. Copying a smaller buffer into the
/// payload and out of it is cheaper than leasing shared memory.
pub const OUT_OF_BAND: usize = 8 << 10;
/// The maximum number of buffers that are sent separately from the payload. All further buffers of an item are part of
/// the payload.
pub const MOST_BUFFERS: usize = 512;

/// The first byte of an encoded value. The comment of each tag describes the bytes that follow the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    None,
    False,
    True,
    /// An int that fits into an i64 is sent as an i64.
    Int,
    /// A float is sent as an f64.
    Float,
    /// A str is sent as UTF-8 text.
    Str,
    /// A bytes object is sent as its bytes.
    Bytes,
    /// A tuple is sent as the number of its members and the members.
    Tuple,
    List,
    /// A dict is sent as the number of its entries, and each key with its value.
    Dict,
    DataChunk,
    /// An array is sent as its dtype, number of dimensions, order of axes, shape and elements.
    Array,
    /// A NumPy scalar is sent as its dtype, length and bytes.
    Scalar,
    /// A tensor is sent as its element type, number of dimensions, a flag for strides, its shape, strides (only if the
    /// flag is set) and elements.
    Tensor,
    /// A pickled object: the pickle, the number of separate buffers, and these buffers.
    Pickle,
    /// This tag precedes each long string or bytes object. Later parts of the item can refer to this object by its
    /// index among the item's `Kept` objects.
    Kept,
    /// An object that occurs again is sent as the number of the earlier `Kept` object.
    Again,
    /// An int that does not fit into an i64 is sent as a u64.
    Unsigned,
    /// A block of numbers is sent as the tags of the container and of the elements, the length and the values (see
    /// `numbers`).
    Numbers,
}

impl Tag {
    pub fn from_byte(byte: u8) -> Option<Self> {
        // SAFETY: the tags are numbered from 0 without gaps, and `Numbers` is the last tag.
        (byte <= Self::Numbers as u8).then(|| unsafe { std::mem::transmute(byte) })
    }
}
