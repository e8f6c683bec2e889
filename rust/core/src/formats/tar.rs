//! The headers of ordinary files in tar archives.
//!
//! Of the many forms of tar header (see tar(5)) only one is hot in a data set: a regular file with a short name. It is
//! read here; whatever else a block may hold is left to a complete reader of the format.

/// Bytes of a header, and the unit to which data is padded.
pub const BLOCK: usize = 512;

const NAME: std::ops::Range<usize> = 0..100;
const SIZE: std::ops::Range<usize> = 124..136;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const TYPE: usize = 156;
const PREFIX: usize = 345;

/// Name and size in bytes of an ordinary file, from its header.
///
/// None where the block is no intact header, belongs to no regular file, or says something that needs more than the two
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
