//! The protocol between the processes of a loader, as state machines that know no memory, no process and no Python.
//!
//! Role: every decision of the protocol stands here. Rings, bells and pumps only carry it out: they show these machines
//! what they read, and do what these say. So the same code runs between real processes and in the model checker
//! (`tests/protocol/`), which visits every interleaving of small loaders.
//!
//! | machine | party | decides |
//! | --- | --- | --- |
//! | [`Sending`] | the writer of a link | whether the reader wants one more item, none yet, or none any more |
//! | [`Ahead`] | the reader of a link | how many bytes of large buffers the writer may be ahead |
//! | [`Receiving`] | the reader of a link | what to do with a unit: take it, drop it, leave it; what is granted |
//! | [`Dealing`] | a worker's pump, the dispatching process | the reader of the next item; the end of a pass |
//! | [`Owners`] | the dispatching process, main | the readers of dealt items that do not follow from their numbers |
//! | [`Collecting`] | main, a worker that reads dispatched items | the next peer; whether to wait, take in, fail |
//! | [`Books`] | main, a worker that reads dispatched items | the snapshots to keep |
//! | [`Obedience`] | a child | what a command does to the epoch that it runs, and when it is acknowledged |
//! | [`Replacing`] | main | whose places are taken when children die, and when that is given up |
//! | [`Calls`] | main | which functions one that takes a place meets, in which order, behind which items |
//!
//! Together they promise, as the checker shows: nobody waits without somebody who will end the wait; no item is
//! lost, doubled, or delivered to another epoch than its own; a death is an error and never an end.

mod account;
mod books;
mod calls;
mod collecting;
mod dealing;
mod grant;
mod obedience;
mod receiving;
mod replacing;
mod sending;
mod stream;

pub use account::Account;
pub use books::{Books, Dealt, Place, Share, Snapshot};
pub use calls::{BETWEEN, Calls, Period, UNTOLD};
pub use collecting::{Collecting, Next};
pub use dealing::{Deal, Dealing};
pub use grant::{Grant, Reader, Wish};
pub use obedience::{Acknowledged, Command, Obedience, Step};
pub use receiving::{Judgement, Receiving};
pub use replacing::{Replacing, TRIES, Verdict};
pub use sending::{Ahead, Permit, Sending};
pub use stream::Stream;
