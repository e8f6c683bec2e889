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
/// The part of a kind that says what a unit is; the rest says how it is laid out.
pub const WHAT: u16 = 0xff;
