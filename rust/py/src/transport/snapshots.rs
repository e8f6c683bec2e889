//! Snapshots of a graph on their way through a link: when one is made, how it is laid out, and where it is kept.
//!
//! A child makes them by itself, between two items, and pushes them aside: if ring or arena lack room they are
//! dropped, and nobody ever waits for one. In the ring one is a unit of little-endian words with the content behind
//! them, or in a block:
//!
//! ```text
//! pass | share: pass, items, checksum | links | by link: items, checksum | content
//! ```

use std::ffi::c_char;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use torchdata_core::error::Corrupted;
use torchdata_core::link::consumer::{Buffer, Unit};
use torchdata_core::link::lease::Lease;
use torchdata_core::link::producer::{Part, Producer};
use torchdata_core::protocol::{Account, Books, Dealt, Place, Share, Snapshot};
use torchdata_core::sampled_clock::SampledClock;

use super::kinds as kind;
use crate::errors;

/// The content in the place of the first snapshot, if none can be made, begins so; the reason follows.
pub const REASON: &[u8] = b"tdno";

/// A snapshot's bytes, as Python has them.
pub type Content = Py<PyBytes>;

/// When the next snapshot is due: after one that took a time c, not before `most_often` and `factor` times c have
/// passed.
pub struct Cadence {
    most_often: Duration,
    factor: f64,
    due: Instant,
    clock: SampledClock,
}

/// Most items between two looks at the clock, and how often it is looked at if that makes them fewer.
const LONGEST_STEP: u32 = 64;
const NEAR: Duration = Duration::from_micros(100);

impl Cadence {
    pub fn new(most_often: Duration, factor: f64) -> Self {
        let longest = if most_often.is_zero() { 1 } else { LONGEST_STEP };
        Self { most_often, factor, due: Instant::now() + most_often, clock: SampledClock::new(1, longest, NEAR) }
    }

    /// Whether a snapshot is due. To be asked once an item.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        self.clock.sample().is_some_and(|now| now >= self.due)
    }

    /// Notes that one was made, which began at `began`.
    pub fn made(&mut self, began: Instant) {
        let now = Instant::now();
        let cost = (now - began).as_secs_f64() * self.factor;
        let pause = Duration::try_from_secs_f64(cost).unwrap_or(Duration::MAX / 4).max(self.most_often);
        self.due = now.checked_add(pause).unwrap_or(now + Duration::from_secs(1 << 20));
    }
}

/// The dispatching process's newest snapshot on its way through a worker.
#[derive(Default)]
pub struct Relay {
    waits: AtomicBool,
    last: Mutex<Relayed>,
}

/// A snapshot as it is passed on: the inline payload, and what is behind it in a block.
#[derive(Default)]
pub struct Relayed {
    pub payload: Vec<u8>,
    pub content: Vec<u8>,
}

impl Relayed {
    /// As it came.
    pub fn of(unit: &Unit) -> PyResult<Self> {
        let content = match unit.buffers.first() {
            Some(Buffer::Owned(bytes)) => bytes.to_vec(),
            Some(Buffer::Leased(lease)) => lease.private_copy().map_err(errors::memory)?,
            None => Vec::new(),
        };
        Ok(Self { payload: unit.payload.clone(), content })
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

    pub fn take(&self) -> Relayed {
        self.waits.store(false, Relaxed);
        std::mem::take(&mut self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Inline content beyond this goes into a block: the ring is for items.
const LONGEST_INLINE: usize = 4 << 10;

/// Pushes a snapshot if there is room; returns whether there was.
pub fn push(producer: &mut Producer, kind: u16, head: &[u8], content: &[u8]) -> Result<bool, Corrupted> {
    if content.len() > LONGEST_INLINE
        && let Some(block) = producer.allocate(content.len())?
    {
        // SAFETY: the block is ours and has room for so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), block.as_mut_ptr(), content.len()) };
        return producer.push_aside(kind, &[Part::Block(Arc::new(block))], head);
    }
    let payload = [head, content].concat();
    if payload.len() > producer.max_inline() {
        return Ok(false);
    }
    producer.push_aside(kind, &[], &payload)
}

/// Returns the words before the content.
pub fn head(pass: u32, share: Share, accounts: impl ExactSizeIterator<Item = Account>) -> Vec<u8> {
    let mut words = vec![u64::from(pass), u64::from(share.pass), share.account.items, share.account.checksum];
    words.push(accounts.len() as u64);
    accounts.for_each(|account| words.extend([account.items, account.checksum]));
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// A unit as it came: its head taken apart, its content where it lies.
pub struct Opened<'a> {
    pass: u32,
    share: Share,
    accounts: Vec<Account>,
    inline: &'a [u8],
    block: Option<&'a Buffer>,
}

impl<'a> Opened<'a> {
    /// Takes a unit apart.
    pub fn read(unit: &'a Unit) -> PyResult<Self> {
        Self::parse(unit).ok_or_else(|| errors::corrupted(Corrupted("a snapshot is not laid out as one")))
    }

    fn parse(unit: &'a Unit) -> Option<Self> {
        let raw = unit.payload.as_slice();
        let word = |index: usize| -> Option<u64> {
            Some(u64::from_le_bytes(raw.get(index.checked_mul(8)?..)?.get(..8)?.try_into().ok()?))
        };
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
            block: unit.buffers.first(),
        })
    }

    /// The content, copied once: it is long if states are, and a reader that waits for an item waits for the copy.
    fn content(&self, py: Python<'_>) -> PyResult<Content> {
        match self.block {
            None => Ok(PyBytes::new(py, self.inline).unbind()),
            Some(Buffer::Owned(bytes)) => Ok(PyBytes::new(py, bytes).unbind()),
            Some(Buffer::Leased(lease)) => lease_as_bytes(py, lease),
        }
    }

    /// As that of a worker.
    pub fn snapshot(self, py: Python<'_>) -> PyResult<Option<Snapshot<Content>>> {
        let Some(&sent) = self.accounts.first() else { return Ok(None) };
        Ok(Some(Snapshot { sent, share: self.share, content: self.content(py)? }))
    }

    /// As that of the dispatching process.
    pub fn dealt(self, py: Python<'_>) -> PyResult<Dealt<Content>> {
        let content = self.content(py)?;
        let mut accounts = self.accounts;
        if content.as_bytes(py).starts_with(REASON) {
            accounts.fill(Account::default()); // the epoch's beginning is gone on from
        }
        Ok(Dealt { pass: self.pass, accounts, content })
    }
}

/// The bytes of a lease, as Python's own.
fn lease_as_bytes(py: Python<'_>, lease: &Lease) -> PyResult<Content> {
    let len = lease.len().try_into().unwrap_or(isize::MAX);
    // SAFETY: the lease's memory is valid for its length. It is no slice: a producer that breaks the rules writes
    // meanwhile, which arrives as wrong bytes. The call returns a new `bytes`, or null with an exception set.
    unsafe {
        let bytes = ffi::PyBytes_FromStringAndSize(lease.as_mut_ptr().cast::<c_char>(), len);
        Ok(Bound::from_owned_ptr_or_err(py, bytes)?.cast_into_unchecked().unbind())
    }
}

/// Whether a unit of this kind is a snapshot.
#[inline]
pub fn is_snapshot(unit_kind: u16) -> bool {
    matches!(unit_kind & kind::WHAT, kind::STATE | kind::RELAYED)
}

/// An account as Python has it.
pub type Entry = (u64, u64);
/// A snapshot as Python has it: sent, pass of the share and what of it was read, content.
pub type Kept = (Entry, u32, Entry, Content);
/// The dispatching process's: pass, by worker what was dealt, content.
pub type KeptDealt = (u32, Vec<Entry>, Content);

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

pub fn kept_dealt(py: Python<'_>, one: &Dealt<Content>) -> KeptDealt {
    (one.pass, one.accounts.iter().copied().map(entry).collect(), one.content.clone_ref(py))
}

pub fn unkept_dealt((pass, accounts, content): KeptDealt) -> Dealt<Content> {
    Dealt { pass, accounts: accounts.into_iter().map(account).collect(), content }
}

/// Places as Python has them: by peer, what was received of it and the newest snapshot before that; the dispatching
/// process's snapshot that fits to these.
pub type KeptPlaces = (Vec<(Entry, Option<Kept>)>, Option<KeptDealt>);

/// Returns places.
pub fn kept_places(py: Python<'_>, books: &Books<Content>, places: &[Place<'_, Content>]) -> KeptPlaces {
    let shares: Vec<_> = places.iter().map(|place| place.snapshot.map(|one| one.share).unwrap_or_default()).collect();
    let dealt = books.dealt_before(&shares);
    let kept = |place: &Place<'_, Content>| (entry(place.given), place.snapshot.map(|one| kept(py, one)));
    (places.iter().map(kept).collect(), dealt.map(|one| kept_dealt(py, one)))
}
