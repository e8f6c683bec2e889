//! Kinds of units; the same numbers on both sides.

/// An item of the pipe.
pub const ITEM: u16 = 0;
/// The pipe has ended for this epoch.
pub const END: u16 = 1;
/// The pipe failed; carries what describes the exception.
pub const ERROR: u16 = 2;
/// A message of the control protocol: a command.
pub const MESSAGE: u16 = 3;
/// Set if the inline payload was too long and travels as the last buffer.
pub const PAYLOAD_IN_BUFFER: u16 = 0x100;
/// A snapshot of the graph that yields the items, as of those before it.
pub const STATE: u16 = 4;
/// A snapshot of the dispatching process, passed on by a worker.
pub const RELAYED: u16 = 5;
/// The result of a function that was called with an item; its number is behind it (see `result_tail`).
pub const RESULT: u16 = 6;
/// A note from the program in a worker to the main process, which reads it in the worker's turn.
pub const NOTE: u16 = 7;
/// The part of a kind that says what a unit is; the rest says how it is laid out.
pub const WHAT: u16 = 0xff;

/// The bytes behind the object of a result: its number, and the seconds that it and those before it took.
pub fn result_tail(number: u64, spent: f64) -> [u8; 16] {
    (u128::from(number) | u128::from(spent.to_bits()) << 64).to_le_bytes()
}

/// The object of a result as bytes, the number, and the seconds.
pub fn split_result(payload: &[u8]) -> Option<(&[u8], u64, f64)> {
    let (object, tail) = payload.split_last_chunk::<16>()?;
    let tail = u128::from_le_bytes(*tail);
    Some((object, tail as u64, f64::from_bits((tail >> 64) as u64)))
}
