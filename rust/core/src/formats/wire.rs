//! Decodes the part of the protocol buffer wire format that `tf.train.Example` uses.
//!
//! The format is described at <https://protobuf.dev/programming-guides/encoding>.

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("its data is not a valid protocol buffer: a field ends too early")]
    Truncated,
    #[error("its data is not a valid protocol buffer: an integer is too long")]
    Varint,
    #[error("its data is not a valid protocol buffer: a field has a type that does not exist")]
    Tag,
    #[error("its data is not a valid protocol buffer: the name of a feature is not UTF-8")]
    Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireValue<'a> {
    /// An integer of variable length. Each byte of the slice contains 7 bits of the integer, lowest bits first.
    Varint(&'a [u8]),
    Fixed64(&'a [u8]),
    /// The bytes of a string, a nested message, or packed numbers.
    Bytes(&'a [u8]),
    Fixed32(&'a [u8]),
}

const LONGEST_VARINT: usize = 10;

/// Iterates over the fields of a message, as pairs of field number and value.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Result<Option<(u64, WireValue<'a>)>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = integer(self.varint()?);
        let number = tag >> 3;
        if number == 0 || number > 0x1fff_ffff {
            return Err(WireError::Tag);
        }
        let value = match tag & 7 {
            0 => WireValue::Varint(self.varint()?),
            1 => WireValue::Fixed64(self.take(8)?),
            2 => {
                let length = integer(self.varint()?);
                WireValue::Bytes(self.take(usize::try_from(length).map_err(|_| WireError::Truncated)?)?)
            }
            5 => WireValue::Fixed32(self.take(4)?),
            _ => return Err(WireError::Tag),
        };
        Ok(Some((number, value)))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        self.rest.split_off(..count).ok_or(WireError::Truncated)
    }

    fn varint(&mut self) -> Result<&'a [u8], WireError> {
        self.take(varint_length(self.rest)?)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, WireValue<'a>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.field().transpose();
        if matches!(field, Some(Err(_))) {
            self.rest = &[];
        }
        field
    }
}

pub fn varints(mut bytes: &[u8], out: &mut Vec<i64>) -> Result<(), WireError> {
    while let Some(&first) = bytes.first() {
        let length = if first < 0x80 { 1 } else { varint_length(bytes)? };
        let (varint, rest) = bytes.split_at(length);
        out.push(integer(varint).cast_signed());
        bytes = rest;
    }
    Ok(())
}

fn varint_length(bytes: &[u8]) -> Result<usize, WireError> {
    match bytes.iter().take(LONGEST_VARINT).position(|&byte| byte < 0x80) {
        Some(last) => Ok(last + 1),
        None if bytes.len() < LONGEST_VARINT => Err(WireError::Truncated),
        None => Err(WireError::Varint),
    }
}

/// Decodes a variable-length integer, and ignores bits beyond the 64th.
fn integer(varint: &[u8]) -> u64 {
    varint.iter().rev().fold(0, |value, &byte| (value << 7) | u64::from(byte & 0x7f))
}
