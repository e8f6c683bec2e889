//! Defines how a process sends snapshots of its state over a link, and how the reader stores these snapshots.
//!
//! A snapshot is dropped if the link is full, because waiting would delay items. A snapshot consists of little-endian
//! words and the content:
//!
//! ```text
//! pass | share: pass, items, checksum | links | by link: items, checksum | content
//! ```

use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use torchdata_core::error::Corrupted;
use torchdata_core::link::consumer::{Buffer, Message};
use torchdata_core::link::lease::Lease;
use torchdata_core::link::producer::{Part, Producer};
use torchdata_core::protocol::{Account, Books, Dispatched, PeerPosition, Share, Snapshot};

use super::kinds as kind;
use crate::errors;

/// If the content of a snapshot begins with this prefix, the rest of the content is the reason why no snapshot could be
/// taken.
pub const REASON: &[u8] = b"tdno";

pub type Content = Py<PyBytes>;

/// The latest snapshot of the dispatching process, which a worker process stores until it can send the snapshot to the
/// main process.
#[derive(Default)]
pub struct Relay {
    waits: AtomicBool,
    last: Mutex<Relayed>,
}

#[derive(Default)]
pub struct Relayed {
    pub payload: Vec<u8>,
    pub content: Vec<u8>,
}

impl Relayed {
    pub fn of(message: &Message) -> PyResult<Self> {
        let content = match message.buffers.first() {
            Some(Buffer::Owned(bytes)) => bytes.to_vec(),
            Some(Buffer::Leased(lease)) => lease.private_copy().map_err(errors::memory)?,
            None => Vec::new(),
        };
        Ok(Self { payload: message.payload.clone(), content })
    }
}

impl Relay {
    pub fn put(&self, snapshot: Relayed) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
        self.waits.store(true, Relaxed);
    }

    #[inline]
    pub fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    #[inline]
    pub fn take(&self) -> Option<Relayed> {
        self.waits().then(|| {
            self.waits.store(false, Relaxed);
            std::mem::take(&mut *self.last.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }
}

/// Content with more than `LONGEST_INLINE` bytes is sent in a block, because the ring is meant for items.
const LONGEST_INLINE: usize = 4 << 10;

pub fn push(producer: &mut Producer, kind: u16, head: &[u8], content: &[u8]) -> Result<bool, Corrupted> {
    if content.len() > LONGEST_INLINE
        && let Some(block) = producer.allocate(content.len())?
    {
        // SAFETY: this function owns the block, which has room for the content.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), block.as_mut_ptr(), content.len()) };
        return producer.push_aside(kind, &[Part::Block(Arc::new(block))], head);
    }
    let payload = [head, content].concat();
    if payload.len() > producer.max_inline() {
        return Ok(false);
    }
    producer.push_aside(kind, &[], &payload)
}

pub fn head(pass: u32, share: Share, accounts: impl ExactSizeIterator<Item = Account>) -> Vec<u8> {
    let mut words = vec![u64::from(pass), u64::from(share.pass), share.account.items, share.account.checksum];
    words.push(accounts.len() as u64);
    accounts.for_each(|account| words.extend([account.items, account.checksum]));
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

pub struct Opened<'a> {
    pass: u32,
    share: Share,
    accounts: Vec<Account>,
    inline: &'a [u8],
    block: Option<&'a Buffer>,
}

impl<'a> Opened<'a> {
    pub fn read(message: &'a Message) -> PyResult<Self> {
        Self::parse(message).ok_or_else(|| errors::corrupted(Corrupted("a snapshot has an invalid format")))
    }

    fn parse(message: &'a Message) -> Option<Self> {
        let raw = message.payload.as_slice();
        let (words, _) = raw.as_chunks::<8>();
        let word = |index: usize| words.get(index).map(|&bytes| u64::from_le_bytes(bytes));
        let links = usize::try_from(word(4)?).ok().filter(|&links| links <= raw.len() / 16)?;
        let accounts = (0..links)
            .map(|link| Some(Account { items: word(5 + 2 * link)?, checksum: word(6 + 2 * link)? }))
            .collect::<Option<_>>()?;
        Some(Self {
            pass: u32::try_from(word(0)?).ok()?,
            share: Share {
                pass: u32::try_from(word(1)?).ok()?,
                account: Account { items: word(2)?, checksum: word(3)? },
            },
            accounts,
            inline: raw.get(8 * (5 + 2 * links)..)?,
            block: message.buffers.first(),
        })
    }

    fn content(&self, py: Python<'_>) -> PyResult<Content> {
        match self.block {
            None => Ok(PyBytes::new(py, self.inline).unbind()),
            Some(Buffer::Owned(bytes)) => Ok(PyBytes::new(py, bytes).unbind()),
            Some(Buffer::Leased(lease)) => lease_as_bytes(py, lease),
        }
    }

    pub fn snapshot(self, py: Python<'_>) -> PyResult<Option<Snapshot<Content>>> {
        let Some(&sent) = self.accounts.first() else { return Ok(None) };
        Ok(Some(Snapshot { sent, share: self.share, content: self.content(py)? }))
    }

    pub fn dispatched(self, py: Python<'_>) -> PyResult<Dispatched<Content>> {
        let content = self.content(py)?;
        let mut accounts = self.accounts;
        if content.as_bytes(py).starts_with(REASON) {
            accounts.fill(Account::default()); // the dispatching process resumes from the beginning of the epoch
        }
        Ok(Dispatched { pass: self.pass, accounts, content })
    }
}

fn lease_as_bytes(py: Python<'_>, lease: &Lease) -> PyResult<Content> {
    let len = lease.len().try_into().unwrap_or(isize::MAX);
    // SAFETY: the lease keeps the `len` bytes readable. If a faulty producer writes to the block while it is copied,
    // only the copied bytes are wrong. PyBytes_FromStringAndSize returns a new object, or NULL with an exception set.
    unsafe {
        let bytes = ffi::PyBytes_FromStringAndSize(lease.as_mut_ptr().cast::<c_char>(), len);
        Ok(Bound::from_owned_ptr_or_err(py, bytes)?.cast_into_unchecked().unbind())
    }
}

#[inline]
pub fn is_snapshot(message_kind: u16) -> bool {
    matches!(message_kind & kind::WHAT, kind::STATE | kind::RELAYED)
}

pub type Entry = (u64, u64);
/// A worker's snapshot: the number and checksum of the sent items, the number of the iteration over the dispatched
/// items, the number and checksum of the items received in this iteration, and the content.
pub type Kept = (Entry, u32, Entry, Content);
/// A snapshot of the dispatching process, as a tuple of the iteration's number, the number and checksum of the items
/// sent to each worker, and the content.
pub type KeptDispatched = (u32, Vec<Entry>, Content);

pub fn account((items, checksum): Entry) -> Account {
    Account { items, checksum }
}

pub fn entry(account: Account) -> Entry {
    (account.items, account.checksum)
}

pub fn kept(py: Python<'_>, one: &Snapshot<Content>) -> Kept {
    (entry(one.sent), one.share.pass, entry(one.share.account), one.content.clone_ref(py))
}

pub fn unkept((sent, pass, share, content): Kept) -> Snapshot<Content> {
    Snapshot { sent: account(sent), share: Share { pass, account: account(share) }, content }
}

pub fn kept_dispatched(py: Python<'_>, one: &Dispatched<Content>) -> KeptDispatched {
    (one.pass, one.accounts.iter().copied().map(entry).collect(), one.content.clone_ref(py))
}

pub fn unkept_dispatched((pass, accounts, content): KeptDispatched) -> Dispatched<Content> {
    Dispatched { pass, accounts: accounts.into_iter().map(account).collect(), content }
}

pub type KeptPositions = (Vec<(Entry, Option<Kept>)>, Option<KeptDispatched>);

pub fn kept_positions(
    py: Python<'_>,
    books: &Books<Content>,
    positions: &[PeerPosition<'_, Content>],
) -> KeptPositions {
    let shares: Vec<_> =
        positions.iter().map(|position| position.snapshot.map(|one| one.share).unwrap_or_default()).collect();
    let dispatched = books.dispatched_before(&shares);
    let kept = |peer: &PeerPosition<'_, Content>| (entry(peer.received), peer.snapshot.map(|one| kept(py, one)));
    (positions.iter().map(kept).collect(), dispatched.map(|one| kept_dispatched(py, one)))
}
