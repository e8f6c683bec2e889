//! What a unit is; the same numbers on both sides.

/// An item of the pipe.
pub const ITEM: u16 = 0;
/// The pipe has ended for this epoch.
pub const END: u16 = 1;
/// The pipe failed; carries what describes the exception.
pub const ERROR: u16 = 2;
/// A message of the control protocol: a command.
pub const MESSAGE: u16 = 3;
/// Set where the inline payload was too long and travels as the last buffer.
pub const PAYLOAD_IN_BUFFER: u16 = 0x100;
