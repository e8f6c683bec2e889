//! The places where a reader's waits are counted.

use pyo3::prelude::*;
use torchdata_core::stats::{FlowRef, PageRef, WaitRef};

use super::stats::PyStatsBoard;

/// The counters of one reader; empty if nobody counts.
#[derive(Default)]
pub struct Meters {
    /// By link: waits for its items.
    waits: Vec<WaitRef>,
    /// Waits for messages.
    idle: Option<WaitRef>,
    /// Main's page.
    page: Option<PageRef>,
    /// Whether no item of this epoch has come yet; of main alone.
    first: bool,
}

impl Meters {
    /// Counts on a page from now on; returns the flows, by link. See `Collector.count_into`.
    pub fn count_into(
        &mut self,
        board: &PyStatsBoard,
        page: usize,
        first: usize,
        peers: Vec<u32>,
        main: bool,
    ) -> PyResult<Vec<FlowRef>> {
        let flows = board.flows(page, first, &peers, false)?;
        self.waits = flows.iter().map(WaitRef::of).collect();
        self.page = if main { Some(board.page(page)?) } else { None };
        Ok(flows)
    }

    /// Counts waits for messages as times at which the process of that page is idle.
    pub fn count_idle(&mut self, board: &PyStatsBoard, page: usize) -> PyResult<()> {
        self.idle = Some(board.page(page)?.idle());
        Ok(())
    }

    /// Notes that a stream begins.
    pub fn begin(&mut self) {
        self.first = self.page.is_some();
    }

    /// Notes that a unit of it has come.
    #[inline]
    pub fn came(&mut self) {
        self.first = false;
    }

    /// Returns the counter of a wait for what comes over a link. The wait for main's first item is counted elsewhere (see
    /// `IteratorGuard`).
    pub fn wait(&self, link: Option<usize>) -> Option<&WaitRef> {
        if !self.first {
            return self.waits.get(link.unwrap_or(0));
        }
        if let Some(page) = &self.page {
            page.set_first_whom(link);
        }
        None
    }

    /// Returns the counter of waits for messages.
    pub fn idle(&self) -> Option<&WaitRef> {
        self.idle.as_ref()
    }
}
