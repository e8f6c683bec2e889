//! The protocol between the processes of a loader, as state machines without shared memory, processes or Python.
//!
//! All decisions of the protocol are made here. The code for rings, bells and processes passes its observations to
//! these machines and executes their decisions. Therefore the same code runs between real processes and in the model
//! checker (`tests/protocol/`), which explores all interleavings of small loaders.
//!
//! | machine | used by | decides |
//! | --- | --- | --- |
//! | [`Sending`] | the writer of a link | whether the reader wants another item now, later, or never |
//! | [`Ahead`] | the reader of a link | how many bytes of large buffers the writer may be ahead |
//! | [`Receiving`] | the reader of a link | whether to take, drop or leave a unit, and the grant |
//! | [`Dealing`] | a worker, the dispatching process | the reader of the next item, and the end of a pass |
//! | [`Owners`] | the dispatching process, the main process | the readers of dispatched items if they do not follow
//! from the item numbers |
//! | [`Collecting`] | the main process, a worker that reads dispatched items | the next peer, and whether to wait,
//! receive early or fail |
//! | [`Books`] | the main process, a worker that reads dispatched items | the snapshots to keep |
//! | [`Obedience`] | a child | how a command affects the running epoch, and when it is acknowledged |
//! | [`Replacing`] | the main process | which children are replaced after an exit, and when to give up |
//!
//! The model checker verifies three properties. Deadlocks are impossible. No item is lost, duplicated or delivered to
//! another epoch. The exit of a process causes an error, and never looks like a normal end.

mod account;
mod books;
mod collecting;
mod dealing;
mod grant;
mod obedience;
mod receiving;
mod replacing;
mod sending;
mod stream;

pub use account::Account;
pub use books::{Books, Dealt, PeerPosition, Share, Snapshot};
pub use collecting::{Collecting, Next};
pub use dealing::{Deal, Dealing};
pub use grant::{Grant, Reader, Wish};
pub use obedience::{Acknowledged, Command, Obedience, Step};
pub use receiving::{Judgement, Receiving};
pub use replacing::{Replacing, TRIES, Verdict};
pub use sending::{Ahead, Permit, Sending};
pub use stream::Stream;
