//! The senders as their reader knows them, and the units that left their rings before they were delivered.
//!
//! Runs in the thread that reads. A unit leaves its ring when its peer has the turn, or earlier: to let a peer go on
//! for which another one waits, or because the process behind the ring has died.

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

/// A unit that was taken out of its ring.
#[derive(Default)]
pub struct Taken {
    pub unit: Unit,
    /// Whether it was counted: its sender may have made another one for it.
    pub counted: bool,
}

impl Taken {
    /// Bytes of this process's own memory, and of a sender's, that the unit takes up.
    fn weight(&self) -> u64 {
        self.unit.buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>() + self.unit.payload.len() as u64
    }

    fn kind(&self) -> u16 {
        self.unit.kind & kind::WHAT
    }
}

/// One sender.
pub struct Peer {
    pub consumer: Consumer,
    /// Units that were taken out of the ring before their turn, or could not be decoded yet.
    taken_in: VecDeque<Taken>,
}

impl Peer {
    /// Returns whether there is something to deliver. A corrupted ring counts as ready: taking from it reports the
    /// error.
    #[inline]
    fn is_ready(&mut self) -> bool {
        !self.taken_in.is_empty() || self.has_arrived()
    }

    /// Returns whether something waits in the ring.
    pub fn has_arrived(&mut self) -> bool {
        self.consumer.readable().unwrap_or(true)
    }

    /// Returns whether a unit was taken out of the ring and not delivered.
    pub fn has_taken_in(&self) -> bool {
        !self.taken_in.is_empty()
    }

    /// Returns whether what is leased leaves room for more leases; else buffers are copied out of the sender's memory.
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

/// The memory in units that were taken in before their turn.
struct Surplus {
    bytes: u64,
    /// The most bytes of which nothing is said.
    most: u64,
    /// Whether it was said in this epoch.
    said: bool,
    /// Called with (peer that is waited for, peer taken in, bytes) when it is more; warns.
    on_surplus: Option<Py<PyAny>>,
}

/// All senders, and the unit in hand.
pub struct Peers {
    all: Vec<Peer>,
    /// Items that each may be ahead.
    window: u64,
    /// Whether they were told to halt.
    paused: bool,
    /// The only one whose items wake this process; None: those of all do.
    awaited: Option<usize>,
    /// Whether one has starved in this epoch, whom items of others may help on. From then on those of all wake.
    has_starved: bool,
    /// The unit taken last, or a place for the next.
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

    /// Begins a stream, which has begun already, with a window of 0, if it was `looked_into`.
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

    /// Tells the peers to halt or to go on, unless they were told.
    pub fn set_paused(&mut self, paused: bool) {
        if paused != self.paused {
            self.paused = paused;
            self.tell_window(if paused { 0 } else { self.window });
        }
    }

    fn tell_window(&mut self, window: u64) {
        self.all.iter_mut().for_each(|peer| peer.consumer.set_window(window));
    }

    /// Returns the next step: to deliver from a peer, or else to take in from one, or to wait.
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
            self.await_all(); // and another look, as something may have come before this was said
        }
    }

    /// Lets only items of this peer wake this process from now on, unless another may starve. In a loader of many
    /// workers all others would wake it in vain.
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

    /// Returns the peer to deliver from, or the end; takes nobody in.
    #[inline]
    pub fn next_to_deliver(&mut self, collecting: &mut Collecting) -> Next {
        collecting.next(|peer| self.all[peer].is_ready(), |_| false, |_| false)
    }

    /// Makes the next unit of a peer the current one; returns whether there was one.
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

    /// Puts the current unit back.
    pub fn put_back(&mut self, peer: usize) {
        let taken = std::mem::take(&mut self.current);
        self.surplus.bytes += taken.weight();
        self.all[peer].taken_in.push_front(taken);
    }

    /// Returns whether the current unit's buffers may stay in the memory of their sender.
    #[inline]
    pub fn may_lease(&self, peer: usize) -> bool {
        self.all[peer].may_lease()
    }

    /// Notes that the current unit was delivered, by copies of its leases unless those were handed on (`leased`).
    #[inline]
    pub fn delivered(&mut self, peer: usize, leased: bool) {
        if !leased && !self.current.unit.buffers.is_empty() {
            self.all[peer].count_copies(&self.current.unit);
        }
        if !self.current.counted {
            self.all[peer].consumer.item_taken();
        }
        self.current.unit.buffers.clear(); // the item alone keeps what it leases
    }

    /// Returns the peer to take in from, because another one starves.
    fn next_to_take_in(&mut self, collecting: &Collecting, starving: &[bool]) -> Option<usize> {
        collecting.to_take_in(|peer| self.all[peer].has_arrived(), |peer| starving[peer])
    }

    /// Takes one unit of a peer out of its ring before its turn.
    pub fn take_in(&mut self, py: Python<'_>, peer: usize, turn: Option<usize>) -> PyResult<()> {
        let one = &mut self.all[peer];
        let may_lease = one.may_lease();
        let mut unit = Unit::default();
        if !one.consumer.take(&mut unit).map_err(errors::take)? {
            return Ok(());
        }
        if !may_lease {
            // The sender's memory is for what is in flight: this may stay for long.
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

    /// Says of how many bytes on, and to whom, it is told that more were taken in than should be.
    pub fn tell_surplus_to(&mut self, most: u64, on_surplus: Py<PyAny>) {
        (self.surplus.most, self.surplus.on_surplus) = (most, Some(on_surplus));
    }

    /// Takes in from some peers, and lets them make more, while another one starves.
    pub fn help_starving(&mut self, py: Python<'_>, collecting: &Collecting) -> PyResult<()> {
        // The turn's own items do not end this: main waits for an answer, which comes behind the next item.
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

    /// Takes in all that a dead peer had committed, and returns the snapshots among it.
    pub fn drain(&mut self, peer: usize) -> PyResult<VecDeque<Taken>> {
        loop {
            // The memory is nobody else's any more: leases into it may stay.
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

    /// Adds the items that were taken in, and not delivered, to those that were delivered.
    pub fn received(&self, peer: usize, mut delivered: Account) -> Account {
        let items = self.all[peer].taken_in.iter().filter(|taken| taken.kind() == kind::ITEM);
        items.for_each(|taken| delivered.count(taken.unit.digest));
        delivered
    }

    /// Returns whether the last unit of a peer's stream was taken in.
    pub fn has_last(&self, peer: usize) -> bool {
        self.all[peer].taken_in.iter().any(|taken| matches!(taken.kind(), kind::END | kind::ERROR))
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.surplus.on_surplus)
    }

    /// Gives the callback away, to be dropped.
    pub fn clear(&mut self) -> Option<Py<PyAny>> {
        self.surplus.on_surplus.take()
    }
}
