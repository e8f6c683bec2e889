//! Items as bytes: a tagged tree inline, large buffers out of band.
//!
//! ```text
//! item    := tag value
//! value   := nothing | i64 | f64 | len bytes | len item* | …   (see Tag)
//! bulk    := 0 len bytes | 1 index                              (index of an out-of-band buffer)
//! ```
//!
//! Only exact built-in types, NumPy arrays and scalars of plain dtypes, torch's dense CPU tensors and our own batches
//! are taken apart here; everything else is pickled (protocol 5, its buffers out of band), by cloudpickle where pickle
//! cannot. An object that appears twice in one item sends the whole item through pickle, which keeps identity.

mod array;
mod decode;
mod encode;
mod helpers;

pub use array::{array_of, empty_over, plain_item_size};
pub use decode::decode;
pub use encode::{Encoder, OutBuffer};

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
    /// dtype number, fortran flag, dimensions, bulk
    Array,
    /// dtype number, bytes
    Scalar,
    /// dtype name, requires_grad, shape, bulk
    Tensor,
    /// bulk (the pickle), len, bulks (its buffers)
    Pickle,
}

impl Tag {
    /// The tag behind a byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [Tag; 16] = [
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
            Tag::Pickle,
        ];
        ALL.get(usize::from(byte)).copied()
    }
}
