//! Checks that a pickle contains only the instructions that Python writes for plain data.
//!
//! The check rejects pickles that could change objects, or make the unpickler allocate gigabytes of memory.

use thiserror::Error;

/// The allowed instructions without arguments: None, True, False, empty containers, MARK, APPEND(S), SETITEM(S),
/// ADDITEMS, FROZENSET, tuples, MEMOIZE, STACK_GLOBAL, REDUCE, STOP.
const BARE: &[u8] = b"N\x88\x89]})\x8f(aesu\x90\x91t\x85\x86\x87\x94\x93R.";

#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlainError {
    #[error("byte {at} is instruction {opcode:#04x}, which plain data does not need")]
    Instruction { at: usize, opcode: u8 },
    #[error("they end within the instruction at byte {0}")]
    Short(usize),
    #[error("{0} bytes follow the end")]
    Excess(usize),
}

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
                excess => Err(PlainError::Excess(excess)),
            };
        }
        at += 1 + length;
    }
    Err(PlainError::Short(at))
}

/// Returns the length of an instruction's argument in bytes, or None if the instruction is not allowed.
///
/// The inner option is None if the pickle ends within the length field of the argument.
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
