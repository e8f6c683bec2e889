//! The kinds of units.

pub const ITEM: u16 = 0;
/// The end of the pipe in this epoch.
pub const END: u16 = 1;
/// A failure of the pipe, with a description of the exception.
pub const ERROR: u16 = 2;
/// A message of the control protocol: a command.
pub const MESSAGE: u16 = 3;
/// Set if the inline payload was too long and is sent as the last buffer.
pub const PAYLOAD_IN_BUFFER: u16 = 0x100;
/// A snapshot of the graph after the preceding items.
pub const STATE: u16 = 4;
/// A snapshot of the dispatching process, relayed by a worker.
pub const RELAYED: u16 = 5;
/// The result of a function call, followed by its number (see `result_tail`).
pub const RESULT: u16 = 6;
/// A note from a worker to the main process, delivered in the turn of the worker.
pub const NOTE: u16 = 7;
/// The bits that contain the kind. The other bits describe the format.
pub const WHAT: u16 = 0xff;

/// The bytes after the object of a result: its number, and the seconds since the first item of its batch was started.
pub fn result_tail(number: u64, spent: f64) -> [u8; 16] {
    (u128::from(number) | u128::from(spent.to_bits()) << 64).to_le_bytes()
}

/// Splits a result into the bytes of its object, its number, and the seconds.
pub fn split_result(payload: &[u8]) -> Option<(&[u8], u64, f64)> {
    let (object, tail) = payload.split_last_chunk::<16>()?;
    let tail = u128::from_le_bytes(*tail);
    Some((object, tail as u64, f64::from_bits((tail >> 64) as u64)))
}
