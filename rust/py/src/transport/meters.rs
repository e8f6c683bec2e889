//! Measures how long a reader waits for items.

use torchdata_core::stats::{FlowRef, PageRef, WaitRef};

#[derive(Default)]
pub struct Meters {
    waits: Vec<WaitRef>,
    pub idle: Option<WaitRef>,
    page: Option<PageRef>,
    /// Whether the main process still waits for the first item of the current epoch.
    pub first: bool,
}

impl Meters {
    pub fn count_into(&mut self, flows: &[FlowRef], page: Option<PageRef>) {
        self.waits = flows.iter().map(WaitRef::of).collect();
        self.page = page;
    }

    pub fn begin(&mut self) {
        self.first = self.page.is_some();
    }

    /// Returns the counter for a wait, or None while the main process waits for the first item of an epoch. The pipe's
    /// iterator measures the wait for the first item instead.
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
