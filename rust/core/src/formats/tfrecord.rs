//! Splits the bytes of TFRecord files into records, and verifies the checksums of the records.
//!
//! A record consists of its length (`u64`, little-endian), a checksum of these 8 bytes, the data, and a checksum of the
//! data. Both checksums of a record are masked CRC-32Cs (see TensorFlow's `record_writer.h`).

const HEAD: usize = 12;
const TAIL: usize = 4;
/// The maximum length of a record in bytes, which is the maximum length of a protocol buffer.
pub const LONGEST: u64 = i32::MAX as u64;

/// TFRecord masks each CRC (by a rotation and an addition), because the data of a record may itself contain CRCs.
pub fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("the checksum of its length is wrong: the file is damaged, or is not an (uncompressed) TFRecord file")]
    Length,
    #[error("the checksum of its data is wrong: the file is damaged")]
    Data,
    #[error(
        "its length of {length} bytes is more than max_length={longest}: the file is damaged, or needs a larger max_length"
    )]
    TooLong { length: u64, longest: u64 },
    #[error("the file is truncated: it ends after {found} of the record's {wanted} bytes")]
    Truncated { found: u64, wanted: u64 },
}

#[derive(Debug)]
pub struct Records {
    /// The fed bytes of the file, where the bytes before index `begin` belong to records that were already returned.
    buffer: Vec<u8>,
    begin: usize,
    pub offset: u64,
    pub record: u64,
    verify: bool,
    longest: u64,
}

impl Records {
    /// Records longer than `longest` bytes cause an error before their data is read.
    pub fn new(offset: u64, record: u64, verify: bool, longest: u64) -> Self {
        Self { buffer: Vec::new(), begin: 0, offset, record, verify, longest: longest.min(LONGEST) }
    }

    pub fn unread(&self) -> &[u8] {
        &self.buffer[self.begin..]
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.begin);
        self.begin = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the data of the next record, or None if more bytes of the file must be fed first.
    pub fn peek(&self) -> Result<Option<&[u8]>, RecordError> {
        let unread = self.unread();
        let Some(length) = self.length()? else { return Ok(None) };
        let Some((data, tail)) = unread[HEAD..].split_at_checked(length) else { return Ok(None) };
        let Some(checksum) = tail.first_chunk::<TAIL>() else { return Ok(None) };
        if self.verify && masked_crc(data) != u32::from_le_bytes(*checksum) {
            return Err(RecordError::Data);
        }
        Ok(Some(data))
    }

    pub fn advance(&mut self) {
        let whole = self.length().ok().flatten().map(|length| HEAD + length + TAIL);
        if let Some(whole) = whole.filter(|&whole| whole <= self.unread().len()) {
            self.begin += whole;
            self.offset = self.offset.saturating_add(whole as u64);
            self.record = self.record.saturating_add(1);
        }
    }

    pub fn finish(&self) -> Result<(), RecordError> {
        let found = self.unread().len() as u64;
        let wanted = self.length()?.map_or(HEAD, |length| HEAD + length + TAIL) as u64;
        if found == 0 || found >= wanted { Ok(()) } else { Err(RecordError::Truncated { found, wanted }) }
    }

    fn length(&self) -> Result<Option<usize>, RecordError> {
        let Some((head, rest)) = self.unread().split_first_chunk::<8>() else { return Ok(None) };
        let Some(checksum) = rest.first_chunk::<4>() else { return Ok(None) };
        if self.verify && masked_crc(head) != u32::from_le_bytes(*checksum) {
            return Err(RecordError::Length);
        }
        let length = u64::from_le_bytes(*head);
        let longest = self.longest;
        if length > longest { Err(RecordError::TooLong { length, longest }) } else { Ok(Some(length as usize)) }
    }
}
