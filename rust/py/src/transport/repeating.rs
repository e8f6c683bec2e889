//! Sends snapshots, and checks the items that a child process recomputes to resume an epoch.
//!
//! A process resumes an epoch from a snapshot, and recomputes the items that the reader received after this snapshot. A
//! rolling checksum verifies that the recomputed items equal the original items.

use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use torchdata_core::link::producer::Producer;
use torchdata_core::link::sampled_len;
use torchdata_core::protocol::{Reader, Share};

use super::kinds as kind;
use super::outlet::{Outlet, Sent, item_kind, turned};
use super::snapshots::{self, Entry, account};
use crate::codec::OutBuffer;
use crate::errors;

/// A worker's snapshot: the number of the iteration over the dispatched items, the number and checksum of the items
/// received in this iteration, and the content.
type Made = (u32, Entry, Py<PyBytes>);

impl Outlet {
    /// No snapshots are taken while items are recomputed, because a snapshot would delay the first new item.
    #[inline]
    pub fn snapshot_if_due(&mut self, py: Python<'_>) -> PyResult<Sent> {
        if let Some(last) = self.relay.as_ref().and_then(|relay| relay.take()) {
            snapshots::push(&mut self.producers[0], kind::RELAYED, &last.payload, &last.content)
                .map_err(errors::corrupted)?;
        }
        let is_due = self.recomputing().is_none() && self.taker.as_mut().is_some_and(|(_, cadence)| cadence.is_due());
        if is_due { self.snapshot(py, true) } else { Ok(Sent::Done) }
    }

    pub fn send_relayed(&mut self, py: Python<'_>) -> PyResult<bool> {
        let Some(last) = self.relay.as_ref().and_then(|relay| relay.take()) else { return Ok(true) };
        self.send_content(py, 0, kind::RELAYED, &last.payload, &PyBytes::new(py, &last.content))
    }

    fn take(&self, py: Python<'_>, shard: usize, waits: bool) -> PyResult<Option<(Vec<u8>, Py<PyBytes>)>> {
        let Some((taker, _)) = &self.taker else { return Ok(None) };
        let made: Option<Made> = taker.call1(py, (shard, waits))?.extract(py)?;
        self.owner.check()?;
        Ok(made.map(|(pass, share, content)| {
            let share = Share { pass, account: account(share) };
            let all = self.producers.iter().flat_map(Producer::accounts);
            let accounts: Vec<_> = if self.has_shards { all.skip(shard).take(1).collect() } else { all.collect() };
            (snapshots::head(self.producers[0].stream().pass(), share, accounts.into_iter()), content)
        }))
    }

    pub fn send_snapshot(&mut self, py: Python<'_>, shard: usize) -> PyResult<bool> {
        let Some((head, content)) = self.take(py, shard, true)? else { return Ok(true) };
        self.send_content(py, shard, kind::STATE, &head, content.bind(py))
    }

    /// If `waits` is true, the snapshot waits until no read-ahead thread is computing an item.
    #[cold]
    pub fn snapshot(&mut self, py: Python<'_>, waits: bool) -> PyResult<Sent> {
        self.flush(); // the reader can take the items that were sent, however long the snapshot takes
        let (began, mut is_made) = (Instant::now(), waits);
        for shard in 0..if self.has_shards { self.dispatch.turn.peers() } else { 1 } {
            if !self.dispatch.turn.is_ended(shard) {
                is_made |= self.push_snapshot(py, shard, waits)?;
            }
        }
        self.depart_note(py, self.entered)?;
        if let Some((_, cadence)) = &mut self.taker {
            cadence.made(is_made.then_some(began), Instant::now());
        }
        self.send_on(py)
    }

    /// Returns false if no snapshot could be taken.
    fn push_snapshot(&mut self, py: Python<'_>, shard: usize, waits: bool) -> PyResult<bool> {
        let Some((head, content)) = self.take(py, shard, waits)? else { return Ok(false) };
        let (first, count) = if self.has_shards { (shard, 1) } else { (self.next_link, self.producers.len()) };
        for step in 0..count {
            let target = if self.has_shards { shard } else { (first + step) % count };
            let producer = self.producer(target);
            if matches!(producer.reader(), Ok(Reader::Here(_) | Reader::Earlier))
                && snapshots::push(producer, kind::STATE, &head, content.as_bytes(py)).map_err(errors::corrupted)?
            {
                self.next_link = target + 1;
                self.count_snapshot();
                break;
            }
        }
        Ok(true)
    }

    /// Counts a recomputed item without sending the item, and verifies the checksum after the last recomputed item.
    #[cold]
    pub fn recompute(&mut self, py: Python<'_>, target: usize, item: &Bound<'_, PyAny>) -> PyResult<()> {
        let Self { encoder, producers, has_shards, expected, .. } = self;
        let producer = turned(producers, *has_shards, target);
        encoder.encode(item, producer.arena())?;
        let mut table = Vec::new();
        for buffer in &mut encoder.buffers {
            // SAFETY: the `len` bytes of a block, and of a source without gaps, are readable.
            table.push(unsafe {
                match buffer {
                    OutBuffer::Block(block) => sampled_len(block.as_mut_ptr(), block.len()),
                    OutBuffer::Memory(source) => sampled_len(source.make_dense(py)?, source.len()),
                }
            });
        }
        let (mut kind, mut payload) = (item_kind(encoder), &encoder.payload[..]);
        if payload.len() > producer.max_inline() {
            // SAFETY: the bytes of `payload` are readable.
            table.push(unsafe { sampled_len(payload.as_ptr(), payload.len()) });
            (kind, payload) = (kind | kind::PAYLOAD_IN_BUFFER, &[]);
        }
        producer.recomputed(kind, &table, payload);
        encoder.clear();
        let account = producer.account();
        match expected.get(target).copied().flatten() {
            Some(expected) if producer.outstanding() == 0 && expected != account.checksum => Err(repeats_not(format!(
                "its items up to number {} differ from those of the earlier run",
                account.items
            ))),
            _ => Ok(()),
        }
    }

    /// Checks, after the last item for the reader `target`, that all items that this reader had already received were
    /// recomputed.
    pub fn check_all_recomputed(&mut self, target: usize) -> PyResult<()> {
        let producer = self.producer(target);
        let (account, outstanding) = (producer.account(), producer.outstanding());
        producer.resume_from(account, 0);
        if outstanding > 0 && self.expected.get(target).copied().flatten().is_some() {
            let items = account.items;
            return Err(repeats_not(format!(
                "it ended after {items} items, {outstanding} items before the position of the state"
            )));
        }
        Ok(())
    }
}

fn repeats_not(how: String) -> PyErr {
    PyRuntimeError::new_err(format!(
        "this pipeline does not repeat itself, so it cannot resume from the state: {how}. Its data, its functions or its random \
         numbers have changed, or PyTorch was imported in only one of the two programs (`.collate()` makes tensors with PyTorch, \
         and arrays without it); load the state with strict=False to resume after the same number of items anyway"
    ))
}
