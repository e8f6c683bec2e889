//! Checks that a pickle contains only the instructions that Python writes for plain data.
//!
//! An unpickler executes the instructions of a pickle. Untrusted instructions could change objects, or allocate
//! gigabytes for a large memo index or length. This check therefore rejects instructions such as BUILD and LONG_BINPUT,
//! and lengths beyond the end of the bytes. The unpickler, not this check, restricts which functions are called.

use thiserror::Error;

/// The allowed instructions without argument: None, True, False, empty containers, MARK, APPEND(S), SETITEM(S),
/// ADDITEMS, FROZENSET, tuples, MEMOIZE, STACK_GLOBAL, REDUCE, STOP.
const BARE: &[u8] = b"N\x88\x89]})\x8f(aesu\x90\x91t\x85\x86\x87\x94\x93R.";

/// The reason why bytes are not accepted as a pickle of plain data.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlainError {
    /// The pickle contains an instruction that plain data does not need.
    #[error("byte {at} is instruction {opcode:#04x}, which plain data does not need")]
    Instruction {
        /// The offset of the instruction in bytes.
        at: usize,
        /// The code of the instruction.
        opcode: u8,
    },
    /// The bytes end within the instruction at this offset, or the final instruction is missing.
    #[error("they end within the instruction at byte {0}")]
    Short(usize),
    /// This many bytes follow the final instruction.
    #[error("{0} bytes follow the end")]
    Behind(usize),
}

/// Checks that a pickle contains only instructions for plain data, and that the bytes do not end within an instruction.
pub fn check_plain(bytes: &[u8]) -> Result<(), PlainError> {
    let mut at = 0;
    while let Some(&opcode) = bytes.get(at) {
        let rest = &bytes[at + 1..];
        let length = argument(opcode, rest)
            .ok_or(PlainError::Instruction { at, opcode })?
            .filter(|&length| length <= rest.len())
            .ok_or(PlainError::Short(at))?;
        if opcode == b'.' {
            return match rest.len() {
                0 => Ok(()),
                behind => Err(PlainError::Behind(behind)),
            };
        }
        at += 1 + length;
    }
    Err(PlainError::Short(at))
}

/// Returns the length of an instruction's argument, or None if the instruction is not allowed. The inner option is None
/// if the bytes end within the argument's length field.
fn argument(opcode: u8, rest: &[u8]) -> Option<Option<usize>> {
    let fixed = |length| Some(Some(length));
    if BARE.contains(&opcode) {
        return fixed(0);
    }
    match opcode {
        // PROTO, BININT1, BINGET
        0x80 | b'K' | b'h' => fixed(1),
        b'M' => fixed(2),                               // BININT2
        b'J' | b'j' => fixed(4),                        // BININT, LONG_BINGET
        b'G' | 0x95 => fixed(8),                        // BINFLOAT, FRAME
        0x8a | 0x8c | b'C' => Some(counted::<1>(rest)), // LONG1, SHORT_BINUNICODE, SHORT_BINBYTES
        0x8b | b'X' | b'B' => Some(counted::<4>(rest)), // LONG4, BINUNICODE, BINBYTES
        0x8d | 0x8e | 0x96 => Some(counted::<8>(rest)), // BINUNICODE8, BINBYTES8, BYTEARRAY8
        _ => None,
    }
}

fn counted<const WIDTH: usize>(rest: &[u8]) -> Option<usize> {
    let mut length = [0; 8];
    length[..WIDTH].copy_from_slice(rest.get(..WIDTH)?);
    usize::try_from(u64::from_le_bytes(length)).ok()?.checked_add(WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pickles_of_plain_data_are_accepted() {
        // The bytes are `pickle.dumps([{"a": 1, "b": (2.5, None)}, b"x"], 5)`.
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
        assert_eq!(check_plain(b"\x80\x05N..."), Err(PlainError::Behind(2)));
    }
}
