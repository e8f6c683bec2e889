//! Measures how much time the user's program spends in `next` of a loader, based on a sample of the calls.
//!
//! A measured call represents itself and the unmeasured calls since the previous measured call.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::prelude::*;
use torchdata_core::stats::{PipeRef, add, nanoseconds};

use crate::gil_cell::GilCell;
use crate::pipes::clocking;

pub struct Metering {
    pub countdown: u32,
    gap: u32,
    random: Cell<u64>,
    most: Cell<u64>,
    /// The end of the last measured call in nanoseconds, or 0 before the first measured call.
    pub measured: u64,
}

impl Metering {
    pub fn new() -> Self {
        Self { countdown: 1, gap: 1, random: Cell::new(nanoseconds() | 1), most: Cell::new(1), measured: 0 }
    }

    pub fn is_due(&mut self) -> bool {
        self.countdown = self.countdown.wrapping_sub(1);
        self.countdown == 0
    }

    /// Records a measured call, and returns the estimated nanoseconds of this call and of the unmeasured calls before
    /// it.
    pub fn note(&mut self, began: u64) -> u64 {
        let now = nanoseconds();
        let (took, passed) = (now - began, now - self.measured);
        let weight = u64::from(self.gap);
        self.measured = now;
        let mean = clocking::interval(took, 1, clocking::PRICE_METERED, clocking::LONGEST_METERED);
        let gap = clocking::next_gap(&self.random, &self.most, mean);
        self.gap = u32::try_from(gap).unwrap_or(u32::MAX);
        self.countdown = self.gap;
        took.saturating_mul(weight).min(passed)
    }
}

#[derive(Default)]
pub struct Meter(GilCell<Option<CountedItems>>);

struct CountedItems {
    pipe: PipeRef,
    metering: Metering,
}

impl Meter {
    /// From now on, adds the items, and the time that they take, to the statistics of `pipe`.
    pub fn count_into(&self, py: Python<'_>, pipe: PipeRef) {
        self.0.with(py, |counted| *counted = Some(CountedItems { pipe, metering: Metering::new() }));
    }

    pub fn around<T>(&self, py: Python<'_>, call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
        let began = self.0.with(py, |counted| counted.as_mut().and_then(CountedItems::begin));
        let result = call();
        self.0.with(py, |counted| {
            if let Some(counted) = counted {
                counted.end(began, result.is_ok());
            }
        });
        result
    }
}

impl CountedItems {
    fn begin(&mut self) -> Option<u64> {
        if !self.metering.is_due() {
            return None;
        }
        if self.metering.measured == 0 {
            self.pipe.page.begin_first();
        }
        Some(nanoseconds())
    }

    fn end(&mut self, began: Option<u64>, has_item: bool) {
        if has_item {
            let yielded = &self.pipe.record().yielded;
            yielded.store(yielded.load(Relaxed) + 1, Relaxed);
        }
        if let Some(began) = began {
            self.note(began, has_item);
        }
    }

    #[inline(never)]
    fn note(&mut self, began: u64, has_item: bool) {
        let page = &self.pipe.page;
        if self.metering.measured != 0 {
            page.inside(self.metering.note(began));
            return;
        }
        page.end_first();
        if has_item {
            self.metering.note(began);
            page.begin_span(None);
        } else {
            self.metering.countdown = 1;
        }
    }
}

/// Counts `items` items in the record of `pipe`, because these items did not pass through the pipe's iterator.
/// Processing all items took about `weight` times `own` nanoseconds, because only one of `weight` calls was measured.
pub fn add_work(pipe: &PipeRef, items: u64, own: u64, weight: u64) {
    let record = pipe.record();
    let all = own.saturating_mul(weight);
    let count = items.max(1);
    add(&record.yielded, items);
    record.sample(all / count, all, count); // the statistics show the time of a single item
}
