//! Taking the time that a program spends in a loader's `next`: of one call in so many.
//!
//! [`Metering`] decides which calls are timed. A timed call represents the calls before it. [`Meter`] counts and times
//! the items of iterators other than pipes. Both run in the thread that reads, with the GIL held.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::prelude::*;
use torchdata_core::stats::{PipeRef, add, nanoseconds};

use crate::gil_cell::GilCell;
use crate::pipes::clocking;

/// Which calls are timed.
pub struct Metering {
    /// Calls until the next that is timed.
    pub countdown: u32,
    /// How many calls one that is timed stands for, the state of the chance, and what the next gap may be on average.
    gap: u32,
    random: Cell<u64>,
    most: Cell<u64>,
    /// When the last timed call ended; 0 before the first.
    pub measured: u64,
}

impl Metering {
    /// Times the first call.
    pub fn new() -> Self {
        Self { countdown: 1, gap: 1, random: Cell::new(nanoseconds() | 1), most: Cell::new(1), measured: 0 }
    }

    /// Whether the call that begins now is timed.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.countdown = self.countdown.wrapping_sub(1);
        self.countdown == 0
    }

    /// Notes a timed call that is over; returns the nanoseconds of the calls that it stands for.
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

/// Counts and times the items of an iterator that hands out a loader's items; does nothing until it is told where.
pub struct Meter(GilCell<Option<Counted>>);

struct Counted {
    pipe: PipeRef,
    metering: Metering,
}

impl Meter {
    pub fn new() -> Self {
        Self(GilCell::new(None))
    }

    /// Counts an epoch, which begins with the next call, at a pipe of main's page.
    pub fn count_into(&self, py: Python<'_>, pipe: PipeRef) {
        self.0.with(py, |counted| *counted = Some(Counted { pipe, metering: Metering::new() }));
    }

    /// Makes a call that gives an item or an error.
    #[inline]
    pub fn around<T>(&self, py: Python<'_>, call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
        let began = self.0.with(py, |counted| counted.as_mut().and_then(Counted::begin));
        let result = call();
        self.0.with(py, |counted| {
            if let Some(counted) = counted {
                counted.end(began, result.is_ok());
            }
        });
        result
    }
}

impl Counted {
    #[inline]
    fn begin(&mut self) -> Option<u64> {
        if !self.metering.is_due() {
            return None;
        }
        if self.metering.measured == 0 {
            self.pipe.page().begin_first();
        }
        Some(nanoseconds())
    }

    #[inline]
    fn end(&mut self, began: Option<u64>, came: bool) {
        if came {
            let yielded = &self.pipe.record().yielded;
            yielded.store(yielded.load(Relaxed) + 1, Relaxed);
        }
        if let Some(began) = began {
            self.note(began, came);
        }
    }

    #[inline(never)]
    fn note(&mut self, began: u64, came: bool) {
        let page = self.pipe.page();
        if self.metering.measured != 0 {
            page.inside(self.metering.note(began), 1);
            return;
        }
        page.end_first();
        if came {
            self.metering.note(began);
            page.begin_span(None);
        } else {
            self.metering.countdown = 1;
        }
    }
}

/// Counts items that were made outside of any pipe, and the time that they took, at a pipe's record.
pub fn add_work(pipe: &PipeRef, items: u64, own: u64, weight: u64) {
    let record = pipe.record();
    add(&record.yielded, items);
    record.sample(own, own.saturating_mul(weight), weight);
}
