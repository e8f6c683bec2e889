//! Items as bytes: a tagged tree inline, large buffers out of band.
//!
//! ```text
//! item    := tag value
//! value   := nothing | i64 | f64 | len bytes | len item* | …   (see Tag; numbers in a row are a block: `numbers`)
//! bulk    := 0 len bytes | 1 index                              (index of an out-of-band buffer)
//! ```
//!
//! Only exact built-in types, times and UUIDs of the standard library, NumPy arrays and scalars of plain dtypes, torch's
//! dense CPU tensors and our own batches are taken apart here; everything else is pickled (protocol 5, its buffers out of band), by cloudpickle if pickle
//! cannot. A long string that appears twice is sent once and referred to; any other object that does sends the whole
//! item through pickle, which keeps identity.

mod array;
mod contiguous;
mod decode;
mod dlpack;
mod dtype;
mod encode;
mod helpers;
mod moments;
mod numbers;
mod source;
mod tensor;

use pyo3::PyErr;
use pyo3::exceptions::PyRuntimeError;

pub use array::{array_of, empty_over};
pub use contiguous::contiguous_copy;
pub use decode::decode;
pub use dtype::Dtype;
pub use encode::Encoder;
pub use source::{OutBuffer, Owner, Source};

/// The error of bytes that are no item.
pub fn malformed() -> PyErr {
    PyRuntimeError::new_err("an item arrived malformed: its sender's memory is corrupted; start a new loader")
}

/// Buffers from this size on travel out of band; smaller ones are cheaper to copy twice than to lease.
pub const OUT_OF_BAND: usize = 8 << 10;
/// Most out-of-band buffers of one item; further ones travel inline.
pub const MOST_BUFFERS: usize = 512;

/// First byte of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    None,
    False,
    True,
    /// i64
    Int,
    /// len, two's complement little-endian bytes
    BigInt,
    /// f64
    Float,
    /// bulk, UTF-8
    Str,
    /// bulk
    Bytes,
    /// len, items
    Tuple,
    List,
    /// len, key and value items in turn
    Dict,
    /// len, items: torchdata's own batch
    DataChunk,
    /// dtype, number of dimensions, order of the axes, shape, bulk
    Array,
    /// dtype, len, bytes
    Scalar,
    /// type of an element, number of dimensions, whether there are strides, shape, strides, bulk: a tensor that is
    /// nothing but elements
    Tensor,
    /// dtype name, requires_grad, shape, bulk: another dense tensor
    OtherTensor,
    /// bulk (the pickle), len, bulks (its buffers)
    Pickle,
    /// item, which may be referred to: such items are numbered from zero on
    Kept,
    /// number: the same object as the kept item of that number
    Again,
    /// u64, of an int that is no i64
    Unsigned,
    /// len, sign and hexadecimal digits as `hex` writes them, and a zero
    Digits,
    /// container, element, len, values (see `numbers`)
    Numbers,
    /// bytes (see `moments`)
    DateTime,
    DateTimeUtc,
    Date,
    Time,
    TimeUtc,
    TimeDelta,
    Uuid,
}

impl Tag {
    /// The tag behind a byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [Tag; 29] = [
            Tag::None,
            Tag::False,
            Tag::True,
            Tag::Int,
            Tag::BigInt,
            Tag::Float,
            Tag::Str,
            Tag::Bytes,
            Tag::Tuple,
            Tag::List,
            Tag::Dict,
            Tag::DataChunk,
            Tag::Array,
            Tag::Scalar,
            Tag::Tensor,
            Tag::OtherTensor,
            Tag::Pickle,
            Tag::Kept,
            Tag::Again,
            Tag::Unsigned,
            Tag::Digits,
            Tag::Numbers,
            Tag::DateTime,
            Tag::DateTimeUtc,
            Tag::Date,
            Tag::Time,
            Tag::TimeUtc,
            Tag::TimeDelta,
            Tag::Uuid,
        ];
        ALL.get(usize::from(byte)).copied()
    }
}
