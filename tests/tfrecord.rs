//! Tests the parser of TFRecord files with complete, truncated and damaged files, read as a whole and in pieces.

use proptest::prelude::*;
use torchdata_core::formats::tfrecord::{LONGEST, RecordError, Records, masked_crc};

fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let checksums = [masked_crc(&length), masked_crc(data)].map(u32::to_le_bytes);
    [&length[..], &checksums[0], data, &checksums[1]].concat()
}

/// Returns the records of a file, and the error that ended the reading, if any.
fn read(file: &[u8], piece: usize, verify: bool) -> (Vec<Vec<u8>>, Option<RecordError>) {
    read_up_to(LONGEST, file, piece, verify)
}

fn read_up_to(longest: u64, file: &[u8], piece: usize, verify: bool) -> (Vec<Vec<u8>>, Option<RecordError>) {
    let mut records = Records::new(0, 0, verify, longest);
    let (mut found, mut pieces) = (Vec::new(), file.chunks(piece));
    loop {
        match records.peek() {
            Ok(Some(data)) => found.push(data.to_vec()),
            Err(error) => return (found, Some(error)),
            Ok(None) => match pieces.next() {
                Some(piece) => {
                    records.feed(piece);
                    continue;
                }
                None => return (found, records.finish().err()),
            },
        }
        records.advance();
    }
}

#[test]
fn the_checksum_is_that_of_files_that_tensorflow_writes() {
    assert_eq!(masked_crc(&8_u64.to_le_bytes()), masked_crc(&[8, 0, 0, 0, 0, 0, 0, 0]));
    // RFC 3720, section B.4, defines the CRC-32C of 32 zeros as 0x8a9136aa.
    assert_eq!(masked_crc(&[0; 32]), 0x8a91_36aa_u32.rotate_right(15).wrapping_add(0xa282_ead8));
}

#[test]
fn a_length_beyond_the_maximum_is_rejected_before_reading() {
    let too_long = |length: u64, longest: u64| (vec![], Some(RecordError::TooLong { length, longest }));
    let length = (LONGEST + 1).to_le_bytes();
    let file = [&length[..], &masked_crc(&length).to_le_bytes()].concat();
    assert_eq!(read(&file, 12, true), too_long(LONGEST + 1, LONGEST));
    assert_eq!(read_up_to(u64::MAX, &file, 12, true), too_long(LONGEST + 1, LONGEST));
    assert_eq!(read(&[0xff; 64], 64, true), (vec![], Some(RecordError::Length)));
    assert_eq!(read(&[0xff; 64], 64, false), too_long(u64::MAX, LONGEST));
    assert_eq!(read_up_to(4, &framed(b"five!")[..12], 12, true), too_long(5, 4));
    assert_eq!(read_up_to(5, &framed(b"five!"), 12, true), (vec![b"five!".to_vec()], None));
}

#[test]
fn offset_and_number_continue_from_the_start_of_reading() {
    let file = [framed(b"one"), framed(b"")].concat();
    let mut records = Records::new(100, 7, true, LONGEST);
    records.advance();
    assert_eq!((records.offset, records.record), (100, 7));
    records.feed(&file);
    records.advance();
    assert_eq!((records.offset, records.record), (119, 8));
    assert_eq!(records.unread(), framed(b""));
    records.advance();
    assert_eq!((records.offset, records.record, records.unread().len()), (135, 9, 0));
}

proptest! {
    #[test]
    fn records_are_unchanged_for_any_pieces(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8),
        piece in 1usize..300,
    ) {
        let file: Vec<u8> = records.iter().flat_map(|record| framed(record)).collect();
        prop_assert_eq!(read(&file, piece, true), (records, None));
    }

    #[test]
    fn a_file_cut_within_a_record_is_truncated(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..4),
        cut in any::<prop::sample::Index>(),
        piece in 1usize..80,
    ) {
        let frames: Vec<Vec<u8>> = records.iter().map(|record| framed(record)).collect();
        let file = frames.concat();
        let cut = cut.index(file.len());
        let mut end = 0;
        let whole = frames.iter().take_while(|frame| { end += frame.len(); end <= cut }).count();
        let at_a_border = frames[..whole].concat().len() == cut;
        let (found, error) = read(&file[..cut], piece, true);
        prop_assert_eq!(&found, &records[..whole]);
        prop_assert_eq!(matches!(error, Some(RecordError::Truncated { .. })), !at_a_border);
    }

    #[test]
    fn a_record_with_one_wrong_bit_is_never_returned(
        data in prop::collection::vec(any::<u8>(), 0..60),
        bit in any::<prop::sample::Index>(),
    ) {
        let mut file = framed(&data);
        let bit = bit.index(8 * file.len());
        file[bit / 8] ^= 1 << (bit % 8);
        let (found, error) = read(&file, 1000, true);
        prop_assert!(found.is_empty());
        prop_assert_eq!(error, Some(if bit < 96 { RecordError::Length } else { RecordError::Data }));
    }

    #[test]
    fn for_any_file_no_more_is_buffered_than_was_read(
        file in prop::collection::vec(any::<u8>(), 0..200),
        lengths in prop::collection::vec(any::<u64>(), 1..4),
        piece in 1usize..80,
    ) {
        let heads = lengths.iter().flat_map(|length| {
            let length = length.to_le_bytes();
            [&length[..], &masked_crc(&length).to_le_bytes()].concat()
        });
        let corrupted: Vec<u8> = heads.chain(file.iter().copied()).collect();
        for (file, verify) in [(&file, true), (&file, false), (&corrupted, true), (&corrupted, false)] {
            let (found, _) = read(file, piece, verify);
            prop_assert!(found.iter().map(Vec::len).sum::<usize>() <= file.len());
        }
    }
}
