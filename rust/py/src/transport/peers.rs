//! The reader's state of its senders, and the units that were taken from their rings before they were delivered.
//!
//! This runs in the reading thread. A unit is taken from its ring when its peer has the turn, or earlier: to allow a
//! peer to continue that another one waits for, or after the process of the ring has exited.

use std::cell::RefCell;
use std::collections::VecDeque;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use torchdata_core::link::consumer::{Buffer, Consumer, Unit};
use torchdata_core::protocol::{Account, Collecting, Next, Stream};
use torchdata_core::stats::add;

use super::kinds as kind;
use super::snapshots;
use crate::errors;

/// A unit that was taken from its ring.
#[derive(Default)]
pub struct Taken {
    pub unit: Unit,
    /// Whether it was counted, so that its sender may have computed another item.
    pub counted: bool,
}

impl Taken {
    /// Bytes of memory of this process and of the sender that the unit uses.
    fn weight(&self) -> u64 {
        self.unit.buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>() + self.unit.payload.len() as u64
    }

    fn kind(&self) -> u16 {
        self.unit.kind & kind::WHAT
    }
}

pub struct Peer {
    pub consumer: Consumer,
    /// Units that were taken before their turn, or could not be decoded yet.
    taken_in: VecDeque<Taken>,
}

impl Peer {
    /// Returns whether a unit can be delivered. A corrupted ring counts as ready, so that taking from it reports the
    /// error.
    #[inline]
    fn is_ready(&mut self) -> bool {
        !self.taken_in.is_empty() || self.has_arrived()
    }

    pub fn has_arrived(&mut self) -> bool {
        self.consumer.readable().unwrap_or(true)
    }

    pub fn has_taken_in(&self) -> bool {
        !self.taken_in.is_empty()
    }

    /// Returns whether more memory may be leased. Otherwise buffers are copied from the memory of the sender.
    fn may_lease(&self) -> bool {
        !self.consumer.should_copy(0)
    }

    /// Counts the leased buffers of a unit as copied.
    fn count_copies(&self, unit: &Unit) {
        let flow = self.consumer.flow();
        let leased = unit.buffers.iter().filter(|buffer| matches!(buffer, Buffer::Leased(_)));
        add(&flow.copies, leased.clone().count() as u64);
        add(&flow.copied, leased.map(Buffer::len).sum::<usize>() as u64);
    }
}

/// The memory of units that were taken before their turn.
struct Surplus {
    bytes: u64,
    /// The number of bytes above which a warning is given.
    most: u64,
    /// Whether a warning was given in this epoch.
    said: bool,
    /// Called with (awaited peer, received peer, bytes) to warn.
    on_surplus: Option<Py<PyAny>>,
}

pub struct Peers {
    all: Vec<Peer>,
    /// The number of items that each may be ahead.
    window: u64,
    paused: bool,
    /// The only peer whose items wake this process, or None if all do.
    awaited: Option<usize>,
    /// Whether a peer has starved in this epoch, so that items of other peers may help it. From then on, items of all
    /// peers wake this process.
    has_starved: bool,
    /// The last unit taken. Reused for the next one.
    pub current: Taken,
    surplus: Surplus,
}

impl Peers {
    pub fn new(consumers: Vec<Consumer>) -> Self {
        let peer = |consumer| Peer { consumer, taken_in: VecDeque::new() };
        Self {
            all: consumers.into_iter().map(peer).collect(),
            window: 1,
            paused: false,
            awaited: None,
            has_starved: false,
            current: Taken::default(),
            surplus: Surplus { bytes: 0, most: u64::MAX, said: false, on_surplus: None },
        }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn all(&self) -> &[Peer] {
        &self.all
    }

    pub fn all_mut(&mut self) -> &mut [Peer] {
        &mut self.all
    }

    pub fn are_paused(&self) -> bool {
        self.paused
    }

    /// Begins an epoch in which each peer may be `window` items ahead.
    pub fn begin_epoch(&mut self, window: u64) {
        self.window = window;
        self.has_starved = false;
        (self.surplus.bytes, self.surplus.said) = (0, false);
        self.all.iter_mut().for_each(|peer| peer.taken_in.clear());
    }

    /// Begins a stream. If it was `looked_into`, it has already begun with a window of 0.
    pub fn begin(&mut self, stream: Stream, looked_into: bool) {
        self.paused = false;
        for peer in &mut self.all {
            if looked_into {
                peer.consumer.set_window(self.window);
            } else {
                peer.taken_in.clear();
                peer.consumer.begin(stream, self.window);
            }
        }
    }

    /// Pauses or resumes the peers, unless this was already done.
    pub fn set_paused(&mut self, paused: bool) {
        if paused != self.paused {
            self.paused = paused;
            self.tell_window(if paused { 0 } else { self.window });
        }
    }

    fn tell_window(&mut self, window: u64) {
        self.all.iter_mut().for_each(|peer| peer.consumer.set_window(window));
    }

    /// Returns the next step: deliver from a peer, receive from one early, or wait.
    pub fn next(&mut self, collecting: &mut Collecting) -> Next {
        loop {
            let all = RefCell::new(&mut self.all);
            let mut starves = false;
            let next = collecting.next(
                |peer| all.borrow_mut()[peer].is_ready(),
                |peer| all.borrow_mut()[peer].has_arrived(),
                |peer| {
                    starves = all.borrow()[peer].consumer.starves();
                    starves
                },
            );
            if next != Next::Wait || !starves || self.awaited.is_none() {
                return next;
            }
            self.has_starved = true;
            self.await_all(); // then check again, because a unit may have arrived before this was set
        }
    }

    /// Lets only items of this peer wake this process, unless a peer may starve. With many workers, items of the others
    /// would wake it needlessly.
    pub fn await_one(&mut self, peer: usize) {
        match self.awaited {
            None if self.has_starved => return,
            Some(before) if before == peer => return,
            Some(before) => self.all[before].consumer.want_items(false),
            None => self.all.iter_mut().for_each(|peer| peer.consumer.want_items(false)),
        }
        self.all[peer].consumer.want_items(true);
        self.awaited = Some(peer);
    }

    /// Lets items of all peers wake this process.
    pub fn await_all(&mut self) {
        if self.awaited.take().is_some() {
            self.all.iter_mut().for_each(|peer| peer.consumer.want_items(true));
        }
    }

    /// Returns the peer to deliver from, or the end. Receives nothing early.
    #[inline]
    pub fn next_to_deliver(&mut self, collecting: &mut Collecting) -> Next {
        collecting.next(|peer| self.all[peer].is_ready(), |_| false, |_| false)
    }

    #[inline]
    pub fn take(&mut self, peer: usize) -> PyResult<bool> {
        let Peer { consumer, taken_in } = &mut self.all[peer];
        if let Some(taken) = taken_in.pop_front() {
            self.surplus.bytes = self.surplus.bytes.saturating_sub(taken.weight());
            self.current = taken;
            return Ok(true);
        }
        self.current.counted = false;
        consumer.take(&mut self.current.unit).map_err(errors::take)
    }

    pub fn put_back(&mut self, peer: usize) {
        let taken = std::mem::take(&mut self.current);
        self.surplus.bytes += taken.weight();
        self.all[peer].taken_in.push_front(taken);
    }

    #[inline]
    pub fn may_lease(&self, peer: usize) -> bool {
        self.all[peer].may_lease()
    }

    /// Records that the current unit was delivered. If `leased` is false, its leases were copied.
    #[inline]
    pub fn delivered(&mut self, peer: usize, leased: bool) {
        if !leased && !self.current.unit.buffers.is_empty() {
            self.all[peer].count_copies(&self.current.unit);
        }
        if !self.current.counted {
            self.all[peer].consumer.item_taken();
        }
        self.current.unit.buffers.clear(); // only the item holds its leases
    }

    /// Returns the peer from which to receive early, because another peer starves.
    fn next_to_take_in(&mut self, collecting: &Collecting, starving: &[bool]) -> Option<usize> {
        collecting.to_take_in(|peer| self.all[peer].has_arrived(), |peer| starving[peer])
    }

    /// Takes one unit of a peer from its ring before its turn.
    pub fn take_in(&mut self, py: Python<'_>, peer: usize, turn: Option<usize>) -> PyResult<()> {
        let one = &mut self.all[peer];
        let may_lease = one.may_lease();
        let mut unit = Unit::default();
        if !one.consumer.take(&mut unit).map_err(errors::take)? {
            return Ok(());
        }
        if !may_lease {
            // The memory of the sender is for units in flight, but this unit may stay for long.
            one.count_copies(&unit);
            let buffers = std::mem::take(&mut unit.buffers);
            unit.buffers = py.detach(|| buffers.into_iter().map(Buffer::into_owned).collect());
        }
        self.keep_for_later(peer, unit);
        self.tell_surplus(py, peer, turn)
    }

    /// Counts a unit, if it is an item, and keeps it until its peer has the turn.
    fn keep_for_later(&mut self, peer: usize, unit: Unit) {
        let one = &mut self.all[peer];
        let taken = Taken { unit, counted: true };
        if taken.kind() == kind::ITEM {
            one.consumer.item_taken_in();
        }
        self.surplus.bytes += taken.weight();
        one.taken_in.push_back(taken);
    }

    fn tell_surplus(&mut self, py: Python<'_>, peer: usize, turn: Option<usize>) -> PyResult<()> {
        let Surplus { bytes, most, said, on_surplus } = &mut self.surplus;
        if *bytes <= *most || *said {
            return Ok(());
        }
        *said = true;
        if let (Some(on_surplus), Some(current)) = (on_surplus, turn) {
            on_surplus.call1(py, (current, peer, *bytes))?;
        }
        Ok(())
    }

    /// Sets the callback for a warning, and the number of bytes above which it is called.
    pub fn tell_surplus_to(&mut self, most: u64, on_surplus: Py<PyAny>) {
        (self.surplus.most, self.surplus.on_surplus) = (most, Some(on_surplus));
    }

    /// Receives items of some peers early, and allows them to compute more, while another peer starves.
    pub fn help_starving(&mut self, py: Python<'_>, collecting: &Collecting) -> PyResult<()> {
        // Items of the peer that has the turn do not end this, because the main process waits for an answer that
        // follows the next item.
        let starving: Vec<bool> = self.all.iter().map(|peer| peer.consumer.starves()).collect();
        while let Some(peer) = self.next_to_take_in(collecting, &starving) {
            self.take_in(py, peer, collecting.turn())?;
        }
        if starving.contains(&true) {
            let others = self.all.iter_mut().zip(starving).filter(|(_, starves)| !starves);
            others.for_each(|(peer, _)| peer.consumer.grant_one_more());
        }
        Ok(())
    }

    /// Takes all units that an exited peer had published, and returns the snapshots among them.
    pub fn drain(&mut self, peer: usize) -> PyResult<VecDeque<Taken>> {
        loop {
            // The process of this memory has exited, so leases can stay.
            let mut unit = Unit::default();
            if !self.all[peer].consumer.take(&mut unit).map_err(errors::take)? {
                break;
            }
            self.keep_for_later(peer, unit);
        }
        let all = std::mem::take(&mut self.all[peer].taken_in);
        let (snapshots, others): (VecDeque<_>, _) =
            all.into_iter().partition(|taken| snapshots::is_snapshot(taken.unit.kind));
        self.all[peer].taken_in = others;
        let bytes: u64 = snapshots.iter().map(Taken::weight).sum();
        self.surplus.bytes = self.surplus.bytes.saturating_sub(bytes);
        Ok(snapshots)
    }

    /// Adds the items that were received but not delivered to those that were delivered.
    pub fn received(&self, peer: usize, mut delivered: Account) -> Account {
        let items = self.all[peer].taken_in.iter().filter(|taken| taken.kind() == kind::ITEM);
        items.for_each(|taken| delivered.count(taken.unit.digest));
        delivered
    }

    /// Returns whether the last unit of a peer's stream was received.
    pub fn has_last(&self, peer: usize) -> bool {
        self.all[peer].taken_in.iter().any(|taken| matches!(taken.kind(), kind::END | kind::ERROR))
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.surplus.on_surplus)
    }

    /// Takes the callback, to be dropped by the caller.
    pub fn clear(&mut self) -> Option<Py<PyAny>> {
        self.surplus.on_surplus.take()
    }
}
