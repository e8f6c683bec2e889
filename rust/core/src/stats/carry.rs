//! Copies the counters of a process on another machine to the main process's board (shared memory for the counters of
//! all processes).
//!
//! The two machines have different clocks, so the main process shifts received times by the difference between the
//! clocks. The main process does not trust received counters, and checks their lengths.

use std::ops::Range;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::board::PageRef;
use super::clock::nanoseconds;
use super::layout::{Flow, PageHeader, PipeRecord, Sequence, Wait, add, write_text};
use crate::error::Corrupted;

const WORD: usize = size_of::<u64>();
const HEAD: usize = 3;
const CONTRADICTS: Corrupted = Corrupted("the counters of a process on another machine have inconsistent lengths");

struct Span {
    words: Range<usize>,
    /// The index of the sequence number (seqlock) that guards `words`, or None if `words` is not guarded.
    guard: Option<usize>,
    moment: Option<usize>,
}

fn spans(flows_at: usize, pipes: usize, flows: usize) -> Vec<Span> {
    let span = |at: usize, words: Range<usize>, guard: Option<usize>, moment: Option<usize>| {
        let first = at / WORD;
        let [guard, moment] = [guard, moment].map(|word| word.map(|word| first + word));
        Span { words: first + words.start..first + words.end, guard, moment }
    };
    let wait = |at| span(at, 0..4, Some(0), Some(1));
    let mut spans = Vec::new();
    for at in (0..flows).map(|flow| flows_at + flow * size_of::<Flow>()) {
        let waits_at = at + std::mem::offset_of!(Flow, wait);
        spans.push(span(at, 0..7, None, None));
        spans.push(wait(waits_at));
        spans.push(span(waits_at + size_of::<Wait>(), 0..4, None, None));
    }
    for at in (0..pipes).map(|pipe| size_of::<PageHeader>() + pipe * size_of::<PipeRecord>()) {
        let guard = std::mem::offset_of!(PipeRecord, sequence) / WORD;
        spans.push(span(at, 0..size_of::<PipeRecord>() / WORD, Some(guard), None));
    }
    spans.push(wait(std::mem::offset_of!(PageHeader, idle)));
    spans.push(wait(std::mem::offset_of!(PageHeader, first)));
    spans.push(wait(std::mem::offset_of!(PageHeader, span)));
    spans.push(span(0, 3..5, None, None));
    spans.push(span(0, 6..9, None, None));
    spans.push(span(0, 0..3, Some(0), Some(2)));
    spans
}

/// A time of 0 means "unset" and is not shifted.
fn moved(moment: u64, by: u64) -> u64 {
    if moment == 0 { 0 } else { moment.wrapping_add(by).max(1) }
}

impl PageRef {
    fn sequence_at(&self, word: usize) -> &Sequence {
        // SAFETY: callers pass the index of an aligned, atomic sequence number inside the page.
        unsafe { &*self.at::<Sequence>(word * WORD) }
    }

    /// Returns a copy of the counters, which [`take_in`](Self::take_in) can write to another board.
    pub fn carry_out(&self) -> Vec<u8> {
        // SYNC(pipes): pairs with PageRef::set_pipes.
        let pipes = self.header().pipes.load(Ordering::Acquire).min(self.board.config.pipes) as usize;
        let flows = (0..).map_while(|index| self.flow_at(index));
        let flows = flows.take_while(|flow| flow.direction.load(Relaxed) != 0).count();
        let words = self.words();
        let mut carried = vec![nanoseconds(), pipes as u64, flows as u64];
        for span in spans(self.board.config.flows_at(), pipes, flows) {
            let read = || words[span.words.clone()].iter().map(|word| word.load(Ordering::Acquire)).collect::<Vec<_>>();
            carried.extend(span.guard.map_or_else(read, |guard| self.sequence_at(guard).read(read)));
        }
        carried.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Replaces the counters of this page with a copy of another page. Returns an error if the length of `carried` does
    /// not match the counts of pipes and links that `carried` contains.
    pub fn take_in(&self, carried: &[u8]) -> Result<(), Corrupted> {
        let (carried, rest) = carried.as_chunks::<WORD>();
        let carried: Vec<u64> = carried.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let [then, pipes, flows] = *carried.first_chunk::<HEAD>().ok_or(CONTRADICTS)?;
        let config = self.board.config;
        if !rest.is_empty() || pipes > config.pipes.into() || flows > config.flows.into() {
            return Err(CONTRADICTS);
        }
        let by = nanoseconds().wrapping_sub(then);
        let spans = spans(config.flows_at(), pipes as usize, flows as usize);
        if carried.len() - HEAD != spans.iter().map(|span| span.words.len()).sum::<usize>() {
            return Err(CONTRADICTS);
        }
        let mut left = &carried[HEAD..];
        for span in spans {
            let (values, others) = left.split_at(span.words.len());
            left = others;
            let write = || self.write(&span, values, by);
            span.guard.map_or_else(write, |guard| self.sequence_at(guard).change(write));
        }
        Ok(())
    }

    fn write(&self, span: &Span, values: &[u64], by: u64) {
        let words = self.words();
        // The words are written in reverse order, because a reader expects `arena_peak` to be written before
        // `arena_used`.
        for (word, &value) in span.words.clone().zip(values).rev() {
            let value = if span.moment == Some(word) { moved(value, by) } else { value };
            if span.guard == Some(word) {
                let [.., a, b, c, d] = value.to_ne_bytes();
                // SAFETY: the 32 bits after the sequence number are inside the page, aligned, and only accessed
                // atomically.
                let half = unsafe { &*self.at::<AtomicU32>(word * WORD + WORD / 2) };
                half.store(u32::from_ne_bytes([a, b, c, d]), Ordering::Release);
            } else {
                words[word].store(value, Ordering::Release);
            }
        }
    }

    /// Stores the counters of a process on another machine, and how long that process has run, has waited for a
    /// processor, and has existed.
    pub fn receive(&self, carried: &[u8], [ran, queued, lived]: [u64; 3]) -> Result<(), Corrupted> {
        self.take_in(carried)?;
        let header = self.header();
        let new =
            [(&header.ran, ran), (&header.queued, queued), (&header.lived, lived), (&header.arrived, nanoseconds())];
        new.iter().for_each(|(field, value)| field.store(*value, Relaxed));
        Ok(())
    }

    /// Sets the name of the machine that runs a new process.
    pub fn set_machine(&self, machine: &str) {
        write_text(&self.header().machine, machine);
        self.header().exited.store(0, Relaxed);
        self.header().arrived.store(nanoseconds(), Relaxed);
    }

    /// Records that a process on another machine has exited.
    pub fn set_exited(&self) {
        self.header().exited.store(1, Relaxed);
    }

    /// Counts bytes that were received from a process on another machine.
    pub fn count_carried(&self, bytes: u64) {
        add(&self.header().carried, bytes);
    }
}

const _: () = assert!(size_of::<AtomicU64>() == WORD && size_of::<Sequence>() == WORD / 2);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::board::{Board, Role};
    use super::super::layout::BoardConfig;
    use super::*;

    fn board(flows: u32, pipes: u32) -> Arc<Board> {
        Board::create(BoardConfig { pages: 2, flows, pipes }, true).unwrap()
    }

    fn elsewhere() -> (Arc<Board>, PageRef) {
        let board = board(2, 3);
        let page = board.page(1).unwrap();
        page.adopt(Role::Worker, 7);
        page.set_pipes(2);
        page.flow(0, 0, true).unwrap().wait.begin(1 << 40);
        page.begin_span(Some(4));
        (board, page)
    }

    fn waits(page: &PageRef) -> [u64; 3] {
        let header = page.header();
        let flow = page.flow_at(0).unwrap();
        [&header.span, &header.idle, &flow.wait].map(|wait| wait.since.load(Relaxed))
    }

    #[test]
    fn times_are_shifted_by_the_difference_of_the_clocks_and_zero_stays_zero() {
        let (_there, page) = elsewhere();
        let mut carried = page.carry_out();
        let ahead = 1_u64 << 50;
        let then = u64::from_le_bytes(carried[..WORD].try_into().unwrap());
        carried[..WORD].copy_from_slice(&(then.wrapping_sub(ahead)).to_le_bytes());
        let here = board(2, 3);
        let taken = here.page(1).unwrap();
        taken.take_in(&carried).unwrap();
        let [span, idle, room] = waits(&page);
        let [span_here, idle_here, room_here] = waits(&taken);
        let late = span_here - span - ahead;
        assert!(late < 60_000_000_000);
        assert_eq!(room_here, room + ahead + late);
        assert_eq!((idle, idle_here), (0, 0));
    }

    #[test]
    fn an_inconsistent_or_too_large_page_is_rejected_and_changes_nothing() {
        let (_there, page) = elsewhere();
        let carried = page.carry_out();
        let here = board(2, 3);
        let taken = here.page(1).unwrap();
        for len in [0, 1, WORD * HEAD - 1, WORD * HEAD, carried.len() - WORD, carried.len() - 1] {
            assert_eq!(taken.take_in(&carried[..len]), Err(CONTRADICTS));
        }
        for (word, count) in [(1, 4), (1, u64::MAX), (2, 3), (2, 0), (1, 0)] {
            let mut other = carried.clone();
            other[word * WORD..(word + 1) * WORD].copy_from_slice(&u64::to_le_bytes(count));
            assert_eq!(taken.take_in(&other), Err(CONTRADICTS));
        }
        assert_eq!(board(2, 1).page(1).unwrap().take_in(&carried), Err(CONTRADICTS));
        assert!(here.read().is_empty());
    }
}
