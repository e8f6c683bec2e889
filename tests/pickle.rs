//! Tests which pickles `check_plain` accepts as plain data.

#![cfg(not(loom))]

use torchdata_core::formats::pickle::{PlainError, check_plain};

#[test]
fn pickles_of_plain_data_are_accepted() {
    // Python returns these bytes for `pickle.dumps([{"a": 1, "b": (2.5, None)}, b"x"], 5)`.
    let whole = b"\x80\x05\x95\x24\0\0\0\0\0\0\0]\x94(}\x94(\x8c\x01a\x94K\x01\x8c\x01b\x94G@\x04\0\0\0\0\0\0N\x86\x94uC\x01x\x94e.";
    assert_eq!(check_plain(whole), Ok(()));
    for cut in 0..whole.len() {
        assert!(check_plain(&whole[..cut]).is_err(), "{cut}");
    }
}

#[test]
fn instructions_that_change_objects_or_use_memo_indices_are_rejected() {
    // GLOBAL, BUILD, NEWOBJ, NEWOBJ_EX, LONG_BINPUT, BINPUT, INT, LONG, PERSID, EXT1, DUP, NEXT_BUFFER
    for opcode in [b'c', b'b', 0x81, 0x92, b'r', b'q', b'I', b'L', b'P', 0x82, b'2', 0x97] {
        let found = check_plain(&[0x80, 5, opcode, 0, 0, 0, 0, b'.']);
        assert_eq!(found, Err(PlainError::Instruction { at: 2, opcode }));
    }
}

#[test]
fn lengths_beyond_the_end_are_rejected_before_memory_is_allocated() {
    for opcode in [0x8d, 0x8e, 0x96] {
        let mut bytes = vec![0x80, 5, opcode];
        bytes.extend(u64::MAX.to_le_bytes());
        bytes.push(b'.');
        assert_eq!(check_plain(&bytes), Err(PlainError::Short(2)));
    }
    assert_eq!(check_plain(b"\x80\x05N..."), Err(PlainError::Excess(2)));
}
