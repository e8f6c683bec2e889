//! A lease is the consumer's permission to use a block of the producer's arena.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::header::{Layout, return_entry};
use crate::error::NoMemory;
use crate::process::board::BellRef;
use crate::process::fork;
use crate::sync::cursor::ProducerCursor;

#[derive(Debug)]
pub(super) struct Returns {
    layout: Arc<Layout>,
    queue: Mutex<Queue>,
    peer: BellRef,
    leased: AtomicU64,
    leases: AtomicU64,
    /// A forked child has another `fork::generation`, and must not return the blocks of its parent.
    generation: u64,
}

#[derive(Debug)]
struct Queue {
    cursor: ProducerCursor,
    /// The offsets of blocks that were dropped while the return ring was full.
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

    pub(super) fn bytes(&self) -> u64 {
        self.leased.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) -> u64 {
        self.leases.load(Ordering::Relaxed)
    }

    pub(super) fn lease(self: &Arc<Self>, offset: u64, len: u64) -> Lease {
        self.leased.fetch_add(len, Ordering::Relaxed);
        self.leases.fetch_add(1, Ordering::Relaxed);
        self.layout.region.mapping.pin();
        Lease { returns: Arc::clone(self), offset, len: len as usize }
    }

    pub(super) fn give_back(&self, offset: u64) {
        if self.generation != fork::generation() {
            return;
        }
        let header = self.layout.header();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.overflow.push(offset);
        // A damaged return ring ends the loop without an error, because the next read from the link reports the damage.
        while queue.cursor.has_room(&header.return_head, 1) == Ok(true)
            && let Some(offset) = queue.overflow.pop()
        {
            let position = queue.cursor.tail();
            self.layout.return_slot(position).store(return_entry(position, offset), Ordering::Relaxed);
            queue.cursor.publish(&header.return_tail, 1);
        }
        drop(queue);
        if header.blocks_wanted.is_raised() {
            self.peer.ring();
        }
    }
}

/// The permission to use a block of the producer's arena. Dropping the lease, in any thread, returns the block.
#[derive(Debug)]
pub struct Lease {
    returns: Arc<Returns>,
    offset: u64,
    len: usize,
}

impl Lease {
    /// Returns the page-aligned start of the block, which is valid until the lease is dropped.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.returns.layout.arena_ptr(self.offset)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies the block into private memory, so that the producer cannot change the bytes while they are decoded.
    pub fn private_copy(&self) -> Result<Vec<u8>, NoMemory> {
        let mut copy = Vec::new();
        self.append_to(&mut copy)?;
        Ok(copy)
    }

    pub fn append_to(&self, copy: &mut Vec<u8>) -> Result<(), NoMemory> {
        copy.try_reserve_exact(self.len).map_err(|_| NoMemory(self.len))?;
        // SAFETY: the lease keeps the `len` bytes of the block mapped, and the vector has room for them. Every byte
        // value is valid. If a faulty producer writes to the block while it is copied, only the copied bytes are wrong.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_mut_ptr(), copy.as_mut_ptr().add(copy.len()), self.len);
            copy.set_len(copy.len() + self.len);
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.returns.leased.fetch_sub(self.len as u64, Ordering::Relaxed);
        self.returns.leases.fetch_sub(1, Ordering::Relaxed);
        self.returns.layout.region.mapping.unpin();
        self.returns.give_back(self.offset);
    }
}
