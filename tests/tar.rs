//! Headers of tar archives: ordinary ones, and all that is left to a complete reader.

use proptest::prelude::*;
use torchdata_core::formats::tar::{BLOCK, file_header};

fn header(name: &[u8], size: &str, kind: u8) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..name.len()].copy_from_slice(name);
    block[124..124 + size.len()].copy_from_slice(size.as_bytes());
    block[156] = kind;
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[test]
fn only_ordinary_files_have_an_ordinary_header() {
    assert_eq!(file_header(&header(b"a/b.txt", "00000001750\0", b'0')), Some(("a/b.txt", 1000)));
    assert_eq!(file_header(&header(b"old", "        12 ", 0)), Some(("old", 10)));
    assert_eq!(file_header(&header(&[b'x'; 100], "777777777777", b'0')).unwrap().1, 0o777_777_777_777);
    for (name, size, kind) in [
        (&b"folder/"[..], "0", b'0'),
        (b"link", "0", b'2'),
        (b"pax", "12", b'x'),
        (b"", "0", b'0'),
        (b"\xff", "0", b'0'),
        (b"binary size", "\u{7f}", b'0'),
        (b"negative", "-1", b'0'),
        (b"no size", "", b'0'),
    ] {
        assert_eq!(file_header(&header(name, size, kind)), None, "{name:?}");
    }
    let mut prefixed = header(b"name", "0", b'0');
    prefixed[345] = b'p';
    assert_eq!(file_header(&prefixed), None);
    assert_eq!(file_header(&[0; BLOCK]), None);
    assert_eq!(file_header(&header(b"short", "0", b'0')[1..]), None);
}

proptest! {
    #[test]
    fn a_header_with_a_wrong_byte_is_none(at in 0usize..BLOCK, change in 1u8..) {
        let mut block = header(b"name", "0000123\0", b'0');
        block[at] = block[at].wrapping_add(change);
        // The checksum's own field may say the same in another way; no change may say something else.
        prop_assert!(matches!(file_header(&block), None | Some(("name", 0o123))));
    }

    #[test]
    fn any_block_is_read_without_panic(block in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = file_header(&block);
    }
}
