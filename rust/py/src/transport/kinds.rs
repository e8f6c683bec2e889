//! Defines the kinds of messages that links transport.

pub const ITEM: u16 = 0;
pub const END: u16 = 1;
pub const ERROR: u16 = 2;
pub const MESSAGE: u16 = 3;
/// A flag for a message with a payload that is too long for the ring. The last buffer of the message contains the
/// payload.
pub const PAYLOAD_IN_BUFFER: u16 = 0x100;
/// A snapshot of the sender's state after the items that were sent before the snapshot.
pub const STATE: u16 = 4;
/// A snapshot of the dispatching process, which a worker process forwards to the main process.
pub const RELAYED: u16 = 5;
/// The result of a function call, followed by the number of this call.
pub const RESULT: u16 = 6;
/// A note for the main process, which is delivered in order with the items of a worker process.
pub const NOTE: u16 = 7;
pub const WHAT: u16 = 0xff;

/// Returns the bytes that follow a function's result: the number of the call, and the seconds since this process began
/// the current batch of calls.
pub fn result_tail(number: u64, spent: f64) -> [u8; 16] {
    (u128::from(number) | u128::from(spent.to_bits()) << 64).to_le_bytes()
}

pub fn split_result(payload: &[u8]) -> Option<(&[u8], u64, f64)> {
    let (object, tail) = payload.split_last_chunk::<16>()?;
    let tail = u128::from_le_bytes(*tail);
    Some((object, tail as u64, f64::from_bits((tail >> 64) as u64)))
}
