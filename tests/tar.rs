//! Tests the parser of tar headers with regular files, other members, and extended headers.

use proptest::prelude::*;
use torchdata_core::formats::tar::{BLOCK, PaxError, file_header, pax_records};

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
fn only_regular_files_have_a_simple_header() {
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

fn record(keyword: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {keyword}={value}\n");
    let length = (1..).find(|length: &usize| length.to_string().len() + rest.len() == *length).unwrap();
    format!("{length}{rest}").into_bytes()
}

#[test]
fn an_extended_header_consists_of_records_followed_by_zeros() {
    assert_eq!(pax_records(b""), Ok(0));
    assert_eq!(pax_records(b"5 a=\n\0\0"), Ok(1));
    assert_eq!(pax_records(b"16 path=name=\nx\n5 b=\n"), Ok(2));
    for (body, index) in [
        (&b"x"[..], 0),
        (b"5 a=", 0),
        (b"4 a=\n", 0),
        (b"6 a=\n", 0),
        (b"+5 a=\n", 0),
        (b" 5 a=\n", 0),
        (b"5 =a\n", 0),
        (b"5 abc\n5 b=\n", 0),
        (b"5 a=\n\n", 5),
        (b"5 a=\n99999999999999999999999 a=\n", 5),
        (b"5 a=\n18446744073709551615 a=\n", 5),
    ] {
        assert_eq!(pax_records(body), Err(PaxError::Record(index)), "{}", String::from_utf8_lossy(body));
    }
    let digits = "1".repeat(100);
    assert_eq!(pax_records(&record("a", &digits)), Ok(1));
    assert_eq!(pax_records(&record("a", &format!("{digits}1"))), Err(PaxError::Number));
}

proptest! {
    #[test]
    fn records_are_counted_for_any_contents(
        records in prop::collection::vec(("[a-z.]{1,20}", "[^0-9\0]{0,90}"), 0..9),
        zeros in 0usize..20,
    ) {
        let mut body: Vec<u8> = records.iter().flat_map(|(keyword, value)| record(keyword, value)).collect();
        body.resize(body.len() + zeros, 0);
        prop_assert_eq!(pax_records(&body), Ok(records.len()));
    }

    #[test]
    fn any_extended_header_is_read_without_panic(body in prop::collection::vec(prop::sample::select(&b"0159 =a\n\0"[..]), 0..60)) {
        if let Ok(count) = pax_records(&body) {
            prop_assert!(5 * count <= body.len());
        }
    }

    #[test]
    fn a_header_with_a_wrong_byte_is_none(at in 0usize..BLOCK, change in 1u8..) {
        let mut block = header(b"name", "0000123\0", b'0');
        block[at] = block[at].wrapping_add(change);
        // The changed header is invalid, unless the byte is part of the checksum and does not change its value.
        prop_assert!(matches!(file_header(&block), None | Some(("name", 0o123))));
    }

    #[test]
    fn any_block_is_read_without_panic(block in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = file_header(&block);
    }
}
