//! Records how many items were received from each shard, and stores the snapshots of the shards.

use std::sync::Arc;

use pyo3::prelude::*;
use torchdata_core::link::consumer::Message;
use torchdata_core::protocol::{Account, Books};

use super::kinds as kind;
use super::snapshots::{Content, Opened, Relay};
use crate::gil_cell::{GilCell, GilNumber};

pub struct StreamProgress {
    pub books: Arc<GilCell<Books<Content>>>,
    pub relay: Arc<Relay>,
    pub received: Received,
    pub starts: Vec<Account>,
}

impl StreamProgress {
    pub fn new(peers: usize) -> Self {
        Self {
            books: Arc::new(GilCell::new(Books::new(peers))),
            relay: Arc::default(),
            received: Received::All,
            starts: Vec::new(),
        }
    }

    pub fn begin(&mut self, py: Python<'_>) {
        let starts = std::mem::take(&mut self.starts);
        drop(self.books.with(py, |books| books.begin(&starts)));
    }

    /// Resets `books` for the new epoch immediately, because another thread may request the position before the first
    /// item is read.
    pub fn begin_early(&mut self, py: Python<'_>, starts: Vec<Account>) {
        drop(self.books.with(py, |books| books.begin(&starts)));
        self.starts = starts;
    }

    #[inline]
    pub fn deliver(&self, py: Python<'_>, peer: usize, digest: u64) {
        self.books.with(py, |books| books.deliver(peer, digest, |total| self.received.lag(total)));
    }

    /// Returns whether the main process has received a snapshot of the shard `peer`. If `dispatched` is true and `peer`
    /// is 0, the main process must also have received a snapshot of the dispatching process.
    pub fn has_snapshot(&self, py: Python<'_>, peer: usize, dispatched: bool) -> bool {
        self.books.with(py, |books| books.has_snapshot(peer) && (!dispatched || peer > 0 || books.has_dispatched()))
    }

    pub fn keep(&self, py: Python<'_>, peer: usize, message: &Message) -> PyResult<()> {
        let opened = Opened::read(message)?;
        let of_dispatcher = message.kind & kind::WHAT == kind::RELAYED;
        let (dispatched, snapshot) =
            if of_dispatcher { (Some(opened.dispatched(py)?), None) } else { (None, opened.snapshot(py)?) };
        let superfluous = self.books.with(py, |books| {
            let lag = self.received.lag(books.total());
            let dispatched = dispatched.map(|dispatched| books.keep_dispatched(dispatched)).unwrap_or_default();
            (dispatched, snapshot.map(|snapshot| books.keep(peer, snapshot, lag)))
        });
        drop(superfluous); // dropped after the access to `books`, because dropping may run arbitrary code
        Ok(())
    }
}

pub enum Received {
    All,
    Counted(Arc<GilNumber>),
    Unknown,
}

impl Received {
    #[inline]
    fn lag(&self, total: u64) -> Option<u64> {
        match self {
            Received::All => Some(0),
            Received::Counted(received) => Some(total.saturating_sub(received.load())),
            Received::Unknown => None,
        }
    }
}
