//! The headers of ordinary files in tar archives, and the form of extended ones.
//!
//! Only one of the many forms of tar header (see tar(5)) is hot in a data set: a regular file with a short name. It is
//! read here; whatever else a block may hold is left to a complete reader of the format, which may trust that extended
//! headers have the form that [`pax_records`] has seen.

/// Bytes of a header, and the unit to which data is padded.
pub const BLOCK: usize = 512;

const NAME: std::ops::Range<usize> = 0..100;
const SIZE: std::ops::Range<usize> = 124..136;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const TYPE: usize = 156;
const PREFIX: usize = 345;

/// Name and size in bytes of an ordinary file, from its header.
///
/// None if the block is no intact header, belongs to no regular file, or says something that needs more than the two
/// fields: a name that is split over two fields or is no UTF-8, a size that is not in octal digits.
pub fn file_header(block: &[u8]) -> Option<(&str, u64)> {
    if block.len() != BLOCK || !matches!(block[TYPE], b'0' | 0) || block[PREFIX] != 0 {
        return None;
    }
    let name = std::str::from_utf8(until_nul(&block[NAME])).ok()?;
    let size = octal(&block[SIZE])?;
    let found: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    let own: u64 = block[CHECKSUM].iter().map(|&byte| u64::from(byte)).sum();
    // The sum is taken with blanks in its own place.
    let intact = octal(&block[CHECKSUM])? == found - own + CHECKSUM.len() as u64 * u64::from(b' ');
    (intact && !name.is_empty() && !name.ends_with('/')).then_some((name, size))
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn octal(field: &[u8]) -> Option<u64> {
    let digits = until_nul(field).trim_ascii();
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0, |value: u64, &digit| {
        matches!(digit, b'0'..=b'7').then(|| value * 8 + u64::from(digit - b'0')) // 12 digits at most: it fits
    })
}

/// Digits in a row that a pax header may hold. Readers look for numbers at each digit of it anew.
const LONGEST_NUMBER: usize = 100;
/// Bytes of the shortest record: `5 a=\n`.
const SHORTEST_RECORD: usize = 5;

/// Why an extended header is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PaxError {
    /// No record begins where one should.
    #[error("no record stands at byte {0} of its extended header")]
    Record(usize),
    /// It holds a number that no program would write.
    #[error("a number in its extended header has more than {LONGEST_NUMBER} digits")]
    Number,
}

/// How many records an extended (pax) header holds, from its body. Zeros may follow them.
///
/// A record is `LENGTH KEYWORD=VALUE\n`, where the length is that of the whole record.
pub fn pax_records(body: &[u8]) -> Result<usize, PaxError> {
    if body.split(|byte| !byte.is_ascii_digit()).any(|run| run.len() > LONGEST_NUMBER) {
        return Err(PaxError::Number);
    }
    let (mut begin, mut count) = (0, 0);
    while body.get(begin).is_some_and(|&byte| byte != 0) {
        begin += record_length(&body[begin..]).ok_or(PaxError::Record(begin))?;
        count += 1;
    }
    Ok(count)
}

/// The length of the record at the start of `bytes`, if one is there.
fn record_length(bytes: &[u8]) -> Option<usize> {
    let digits = bytes.iter().position(|&byte| byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..digits]).ok()?.parse().ok()?; // `parse` takes a sign, too
    let intact = bytes[0].is_ascii_digit() && length >= SHORTEST_RECORD && length > digits + 1;
    let record = bytes.get(digits + 1..length).filter(|_| intact)?;
    let keyword = record.iter().position(|&byte| byte == b'=')?;
    (keyword > 0 && record.last() == Some(&b'\n')).then_some(length)
}
