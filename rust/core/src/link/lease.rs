//! Leases: blocks of a producer's arena in the consumer's hands, and their way back.
//!
//! Runs in the process that the items are for. A lease may be dropped on any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::cursor::ProducerCursor;
use super::header::{Layout, return_entry};
use crate::error::NoMemory;
use crate::process::board::BellRef;
use crate::process::fork;

/// The part that leases need to give their blocks back.
#[derive(Debug)]
pub(super) struct Returns {
    layout: Arc<Layout>,
    queue: Mutex<Queue>,
    peer: BellRef,
    /// Bytes and number of the leases.
    leased: AtomicU64,
    leases: AtomicU64,
    /// The process that holds the leases; a forked child must not give them back.
    generation: u64,
}

/// Blocks on their way back.
#[derive(Debug)]
struct Queue {
    cursor: ProducerCursor,
    /// Blocks that found the return ring full. That takes a producer that sends one block many times: it never has
    /// more different blocks out than the ring has entries.
    overflow: Vec<u64>,
}

impl Returns {
    pub(super) fn new(layout: Arc<Layout>, peer: BellRef) -> Self {
        let cursor = ProducerCursor::new(layout.config.return_capacity);
        Self {
            queue: Mutex::new(Queue { cursor, overflow: Vec::new() }),
            layout,
            peer,
            leased: AtomicU64::new(0),
            leases: AtomicU64::new(0),
            generation: fork::generation(),
        }
    }

    /// Bytes of the leases that are out.
    pub(super) fn bytes(&self) -> u64 {
        self.leased.load(Ordering::Relaxed)
    }

    /// How many are out.
    pub(super) fn count(&self) -> u64 {
        self.leases.load(Ordering::Relaxed)
    }

    pub(super) fn lease(self: &Arc<Self>, offset: u64, len: u64) -> Lease {
        self.leased.fetch_add(len, Ordering::Relaxed);
        self.leases.fetch_add(1, Ordering::Relaxed);
        self.layout.region().mapping().pin();
        Lease { returns: Arc::clone(self), offset, len: len as usize }
    }

    pub(super) fn give_back(&self, offset: u64) {
        if self.generation != fork::generation() {
            return;
        }
        let header = self.layout.header();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.overflow.push(offset);
        // If memory is corrupted the blocks stay here; the next read of the producer's side reports it.
        while queue.cursor.has_room(&header.return_head, 1) == Ok(true)
            && let Some(offset) = queue.overflow.pop()
        {
            let position = queue.cursor.tail();
            self.layout.return_slot(position).store(return_entry(position, offset), Ordering::Relaxed);
            queue.cursor.publish(&header.return_tail, 1);
        }
        drop(queue);
        // A producer that makes the next item, or waits for leave to, has no use for a wake-up by each array that dies.
        if header.blocks_wanted.is_raised() {
            self.peer.ring();
        }
    }
}

/// A hold on a block of the producer's arena. The block goes back when the lease is dropped, on any thread.
#[derive(Debug)]
pub struct Lease {
    returns: Arc<Returns>,
    offset: u64,
    len: usize,
}

impl Lease {
    /// Start of the block; page-aligned, readable and writable for `len` bytes as long as the lease lives.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.returns.layout.arena_ptr(self.offset)
    }

    /// Bytes of the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes, in memory that nobody changes any more, whatever the producer does: what is decoded is looked at more
    /// than once.
    pub fn private_copy(&self) -> Result<Vec<u8>, NoMemory> {
        let mut copy = Vec::new();
        self.copy_into(&mut copy)?;
        Ok(copy)
    }

    /// The same, in place of what the vector holds.
    pub fn copy_into(&self, copy: &mut Vec<u8>) -> Result<(), NoMemory> {
        copy.clear();
        copy.try_reserve_exact(self.len).map_err(|_| NoMemory(self.len))?;
        // SAFETY: the lease's memory is valid for its length, the vector has room for it, and bytes of any value will
        // do. A producer that breaks the rules and writes meanwhile makes wrong bytes: the copy itself decides nothing by
        // them.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_mut_ptr(), copy.as_mut_ptr(), self.len);
            copy.set_len(self.len);
        }
        Ok(())
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.returns.leased.fetch_sub(self.len as u64, Ordering::Relaxed);
        self.returns.leases.fetch_sub(1, Ordering::Relaxed);
        self.returns.layout.region().mapping().unpin();
        self.returns.give_back(self.offset);
    }
}
