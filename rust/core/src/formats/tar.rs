//! Parses the tar headers of regular files, and checks the format of extended (pax) headers.
//!
//! Python's `tarfile` module parses all headers that this module cannot parse.

/// The size of a tar header in bytes. In a tar file, the contents of each file are padded with zeros to a multiple of
/// 512 bytes.
pub const BLOCK: usize = 512;

const NAME: std::ops::Range<usize> = 0..100;
const SIZE: std::ops::Range<usize> = 124..136;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const TYPE: usize = 156;
const PREFIX: usize = 345;

/// Returns the name and the size in bytes of a regular file, or None if only `tarfile` can parse the header.
pub fn file_header(block: &[u8]) -> Option<(&str, u64)> {
    if block.len() != BLOCK || !matches!(block[TYPE], b'0' | 0) || block[PREFIX] != 0 {
        return None;
    }
    let name = std::str::from_utf8(until_nul(&block[NAME])).ok()?;
    let size = octal(&block[SIZE])?;
    let found: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    let own: u64 = block[CHECKSUM].iter().map(|&byte| u64::from(byte)).sum();
    // The checksum of a tar header is computed as if the checksum field itself contained blanks.
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
        matches!(digit, b'0'..=b'7').then(|| value * 8 + u64::from(digit - b'0')) // twelve octal digits cannot overflow
    })
}

/// The maximum number of digits in a number of a pax header. For longer numbers, the regular expressions of `tarfile`
/// could take quadratic time.
const LONGEST_NUMBER: usize = 100;
const SHORTEST_RECORD: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PaxError {
    #[error("there is no valid record at byte {0} of its extended header")]
    Record(usize),
    #[error("a number in its extended header has more than {LONGEST_NUMBER} digits")]
    Number,
}

/// Returns the number of records in an extended (pax) header. Zeros may follow the last record.
///
/// A record is `LENGTH KEYWORD=VALUE\n`, where LENGTH is the number of bytes of the whole record in decimal.
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

fn record_length(bytes: &[u8]) -> Option<usize> {
    let digits = bytes.iter().position(|&byte| byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..digits]).ok()?.parse().ok()?; // `parse` alone would also accept a sign
    let intact = bytes[0].is_ascii_digit() && length >= SHORTEST_RECORD && length > digits + 1;
    let record = bytes.get(digits + 1..length).filter(|_| intact)?;
    let keyword = record.iter().position(|&byte| byte == b'=')?;
    (keyword > 0 && record.last() == Some(&b'\n')).then_some(length)
}
