//! Measures how long a reader waits.

use pyo3::prelude::*;
use torchdata_core::stats::{FlowRef, PageRef, WaitRef};

use super::stats::PyStatsBoard;

#[derive(Default)]
pub struct Meters {
    waits: Vec<WaitRef>,
    pub idle: Option<WaitRef>,
    page: Option<PageRef>,
    /// Whether the main process still waits for the first item of the current epoch.
    pub first: bool,
}

impl Meters {
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

    pub fn begin(&mut self) {
        self.first = self.page.is_some();
    }

    /// Returns the counter of a wait, or None for the main process's first wait in an epoch, which the pipe's iterator
    /// measures.
    pub fn wait(&self, link: Option<usize>) -> Option<&WaitRef> {
        if !self.first {
            return self.waits.get(link.unwrap_or(0));
        }
        if let Some(page) = &self.page {
            page.set_first_whom(link);
        }
        None
    }
}
