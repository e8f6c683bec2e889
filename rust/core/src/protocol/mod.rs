//! What the processes of a loader say to each other, as state machines that know no memory, no process and no Python.
//!
//! Role: every decision of the protocol stands here. Rings, bells and pumps only carry it out: they show these machines
//! what they read, and do what these say. So the same code runs between real processes and in the model checker
//! (`tests/protocol/`), which visits every interleaving of small loaders.
//!
//! | machine | of whom | decides |
//! | --- | --- | --- |
//! | [`Sending`] | who writes a link | whether the reader wants one more item, none yet, or none any more |
//! | [`Receiving`] | who reads a link | what to do with a unit: take it, drop it, leave it; what is granted |
//! | [`Dealing`] | a worker's pump, the dispatching process | to whom the next item goes; when a pass is over, and the next one begins |
//! | [`Collecting`] | main, a worker that reads dispatched items | whose item is next; whether to wait, to take in, to fail |
//! | [`Books`] | main, a worker that reads dispatched items | which snapshots are kept, and where everybody was some items ago |
//! | [`Obedience`] | a child | what a command does to the epoch that it runs, and when it is acknowledged |
//! | [`Replacing`] | main | whose places are taken when children die, and when that is given up |
//!
//! What they promise together, as the checker shows: nobody waits without somebody who will end the wait; no item is
//! lost, doubled, or delivered to another epoch than its own; a death is an error and never an end.

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
pub use books::{Books, Dealt, Place, Share, Snapshot};
pub use collecting::{Collecting, Next};
pub use dealing::{Deal, Dealing};
pub use grant::{Grant, Reader, Wish};
pub use obedience::{Acknowledged, Command, Obedience, Step};
pub use receiving::{Judgement, Receiving};
pub use replacing::{Replacing, TRIES, Verdict};
pub use sending::{Permit, Sending};
pub use stream::Stream;
