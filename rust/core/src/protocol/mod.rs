//! The protocol between the processes of a loader, as state machines that use no shared memory, processes or Python.
//!
//! | machine | used by | decides |
//! | --- | --- | --- |
//! | [`Sending`] | the writer of a link | whether the reader wants another item now, later, or never |
//! | [`Ahead`] | the reader of a link | how many bytes of large buffers the writer may be ahead |
//! | [`Receiving`] | the reader of a link | whether to take, drop or leave a message, and the grant |
//! | [`Dispatch`] | a worker, the dispatching process | the reader of the next item, and the end of a pass |
//! | [`Collecting`] | the main process, a worker that reads dispatched items | the next peer, and whether to wait |
//! | [`Books`] | the main process, a worker that reads dispatched items | the snapshots to keep |
//! | [`CommandState`] | a child | how a command affects the running epoch, and when it is acknowledged |
//! | [`Replacing`] | the main process | which children are replaced after an exit, and when to give up |
//!
//! The model checker in `tests/protocol/` explores all interleavings of small loaders. The checker verifies that no
//! deadlock occurs, and that no item is lost, duplicated or delivered to another epoch.

mod account;
mod books;
mod collecting;
mod command_state;
mod dispatch;
mod grant;
mod receiving;
mod replacing;
mod sending;
mod stream;

pub use account::Account;
pub use books::{Books, Dispatched, PeerPosition, Share, Snapshot};
pub use collecting::{Collecting, Next};
pub use command_state::{Command, CommandState, Step};
pub use dispatch::{Choice, Dispatch};
pub use grant::{Grant, Reader, Wish};
pub use receiving::{Judgement, Receiving};
pub use replacing::{Replacing, TRIES, Verdict};
pub use sending::{Ahead, Permit, Sending};
pub use stream::Stream;
