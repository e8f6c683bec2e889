//! The shards (peers) that send messages to a reader, and messages that the reader has received before their turn.
//!
//! Each link transports the messages of several peers. With n links, peer p sends over link p % n, and is shard p / n
//! of the process at this link's opposite end.

use std::cell::RefCell;
use std::collections::VecDeque;

use pyo3::prelude::*;
use torchdata_core::error::Corrupted;
use torchdata_core::link::consumer::{Buffer, Consumer, Message};
use torchdata_core::protocol::{Account, Collecting, Next, Stream};
use torchdata_core::stats::add;

use super::kinds as kind;
use super::snapshots;
use crate::errors;

#[derive(Default)]
pub struct Taken {
    pub message: Message,
    /// Whether the sending process was already informed that the message was received.
    pub counted: bool,
}

impl Taken {
    fn weight(&self) -> u64 {
        self.message.buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>() + self.message.payload.len() as u64
    }

    fn kind(&self) -> u16 {
        self.message.kind & kind::WHAT
    }
}

/// Returns whether a message has arrived. The result is true for a damaged ring, because the call that takes the
/// message reports the damage.
#[inline]
fn has_arrived(consumer: &mut Consumer) -> bool {
    consumer.readable().unwrap_or(true)
}

/// Returns whether items of a link may refer to the link's shared memory instead of to private copies.
fn may_lease(consumer: &Consumer) -> bool {
    !consumer.should_copy(0)
}

fn count_copies(consumer: &Consumer, message: &Message) {
    let flow = consumer.flow();
    let leased = message.buffers.iter().filter(|buffer| matches!(buffer, Buffer::Leased(_)));
    add(&flow.copies, leased.clone().count() as u64);
    add(&flow.copied, leased.map(Buffer::len).sum::<usize>() as u64);
}

pub struct Surplus {
    bytes: u64,
    most: u64,
    reported: bool,
    /// A callback with the arguments (next peer, peer of the latest early message, bytes of all early messages). An
    /// early message is a message that was received before its turn.
    pub on_surplus: Option<Py<PyAny>>,
}

pub struct Peers {
    pub links: Vec<Consumer>,
    /// For each peer, messages that were received before their turn, and a message that must be decoded again after an
    /// interruption.
    taken_in: Vec<VecDeque<Taken>>,
    window: u64,
    pub paused: bool,
    /// The index of the link, if only items of one link wake up this process, or None if items of all links wake it up.
    awaited: Option<usize>,
    /// Whether a worker has waited for the dispatching process in this epoch. After such a wait, items on every link
    /// wake up the main process.
    has_starved: bool,
    /// The latest message of any link. The memory of this message is reused for the next message.
    pub current: Taken,
    pub surplus: Surplus,
}

impl Peers {
    pub fn new(links: Vec<Consumer>, peers: usize) -> Self {
        Self {
            links,
            taken_in: (0..peers).map(|_| VecDeque::new()).collect(),
            window: 1,
            paused: false,
            awaited: None,
            has_starved: false,
            current: Taken::default(),
            surplus: Surplus { bytes: 0, most: u64::MAX, reported: false, on_surplus: None },
        }
    }

    pub fn len(&self) -> usize {
        self.taken_in.len()
    }

    #[inline]
    pub fn link_of(&self, peer: usize) -> usize {
        // The comparison avoids the division in most calls. The division would double the cost of this function.
        if peer < self.links.len() { peer } else { peer % self.links.len() }
    }

    #[inline]
    pub fn consumer(&mut self, peer: usize) -> &mut Consumer {
        let link = self.link_of(peer);
        &mut self.links[link]
    }

    #[inline]
    fn peer_of(&self, link: usize, message: &Message) -> PyResult<usize> {
        let peer = link + usize::from(message.shard) * self.links.len();
        if peer < self.len() { Ok(peer) } else { Err(errors::corrupted(Corrupted("a message has an unknown shard"))) }
    }

    #[inline]
    fn is_ready(&mut self, peer: usize) -> bool {
        !self.taken_in[peer].is_empty() || self.has_arrived(peer)
    }

    #[inline]
    pub fn has_arrived(&mut self, peer: usize) -> bool {
        has_arrived(self.consumer(peer))
    }

    pub fn has_taken_in(&self, peer: usize) -> bool {
        !self.taken_in[peer].is_empty()
    }

    pub fn begin_epoch(&mut self, window: u64) {
        self.window = window;
        self.has_starved = false;
        (self.surplus.bytes, self.surplus.reported) = (0, false);
        self.taken_in.iter_mut().for_each(VecDeque::clear);
    }

    /// Begins a stream. If `looked_into` is true, the reader has already begun this stream to receive a snapshot, so
    /// this method only permits the senders to send items.
    pub fn begin(&mut self, stream: Stream, looked_into: bool) {
        self.paused = false;
        if looked_into {
            return self.announce_window(self.window);
        }
        self.taken_in.iter_mut().for_each(VecDeque::clear);
        self.links.iter_mut().for_each(|link| link.begin(stream, self.window));
    }

    pub fn set_paused(&mut self, paused: bool) {
        if paused != self.paused {
            self.paused = paused;
            self.announce_window(if paused { 0 } else { self.window });
        }
    }

    fn announce_window(&mut self, window: u64) {
        self.links.iter_mut().for_each(|link| link.set_window(window));
    }

    /// Decides whether the reader delivers an item, receives a message before its turn, or waits.
    pub fn next(&mut self, collecting: &mut Collecting) -> Next {
        loop {
            let all = RefCell::new(&mut *self);
            let mut starves = false;
            let next = collecting.next(
                |peer| all.borrow_mut().is_ready(peer),
                |peer| all.borrow_mut().has_arrived(peer),
                |peer| {
                    starves = all.borrow_mut().consumer(peer).starves();
                    starves
                },
            );
            if next != Next::Wait || !starves || self.awaited.is_none() {
                return next;
            }
            self.has_starved = true;
            self.await_all(); // checks again, because a message may have arrived in the meantime
        }
    }

    /// Makes this process wake up only for items on the link of `peer`.
    pub fn await_one(&mut self, peer: usize) {
        let link = self.link_of(peer);
        match self.awaited {
            None if self.has_starved => return,
            Some(before) if before == link => return,
            Some(before) => self.links[before].want_items(false),
            None => self.links.iter_mut().for_each(|link| link.want_items(false)),
        }
        self.links[link].want_items(true);
        self.awaited = Some(link);
    }

    pub fn await_all(&mut self) {
        if self.awaited.take().is_some() {
            self.links.iter_mut().for_each(|link| link.want_items(true));
        }
    }

    #[inline]
    pub fn next_to_deliver(&mut self, collecting: &mut Collecting) -> Next {
        collecting.next(|peer| self.is_ready(peer), |_| false, |_| false)
    }

    /// Moves a peer's next message to `current` and returns true, or returns false if there is none. A message in the
    /// ring that belongs to another peer is stored until that peer's turn.
    #[inline]
    pub fn take(&mut self, peer: usize) -> PyResult<bool> {
        if let Some(taken) = self.taken_in[peer].pop_front() {
            self.surplus.bytes = self.surplus.bytes.saturating_sub(taken.weight());
            self.current = taken;
            return Ok(true);
        }
        self.current.counted = false;
        let link = self.link_of(peer);
        if !self.links[link].take(&mut self.current.message).map_err(errors::take)? {
            return Ok(false);
        }
        let sender = self.peer_of(link, &self.current.message)?;
        if sender != peer {
            let message = std::mem::take(&mut self.current.message);
            self.keep_for_later(sender, message);
        }
        Ok(sender == peer)
    }

    pub fn snapshots_taken_in(&mut self, peer: usize) -> VecDeque<Taken> {
        let all = std::mem::take(&mut self.taken_in[peer]);
        let (snapshots, others): (VecDeque<_>, _) =
            all.into_iter().partition(|taken| snapshots::is_snapshot(taken.message.kind));
        self.taken_in[peer] = others;
        let bytes: u64 = snapshots.iter().map(Taken::weight).sum();
        self.surplus.bytes = self.surplus.bytes.saturating_sub(bytes);
        snapshots
    }

    pub fn put_back(&mut self, peer: usize) {
        let taken = std::mem::take(&mut self.current);
        self.surplus.bytes += taken.weight();
        self.taken_in[peer].push_front(taken);
    }

    #[inline]
    pub fn may_lease(&self, peer: usize) -> bool {
        may_lease(&self.links[self.link_of(peer)])
    }

    #[inline]
    pub fn delivered(&mut self, peer: usize, leased: bool) {
        let link = self.link_of(peer);
        if !leased && !self.current.message.buffers.is_empty() {
            count_copies(&self.links[link], &self.current.message);
        }
        if !self.current.counted {
            self.links[link].item_taken();
        }
        self.current.message.buffers.clear();
    }

    pub fn take_in(&mut self, py: Python<'_>, peer: usize, turn: Option<usize>) -> PyResult<()> {
        let link = self.link_of(peer);
        let consumer = &mut self.links[link];
        let may_lease = may_lease(consumer);
        let mut message = Message::default();
        if !consumer.take(&mut message).map_err(errors::take)? {
            return Ok(());
        }
        if !may_lease {
            // The message may be kept for a long time, so its buffers are copied to free the sending process's memory.
            count_copies(consumer, &message);
            let buffers = std::mem::take(&mut message.buffers);
            message.buffers = py.detach(|| buffers.into_iter().map(Buffer::into_owned).collect());
        }
        let peer = self.peer_of(link, &message)?;
        self.keep_for_later(peer, message);
        self.report_surplus(py, peer, turn)
    }

    #[cold]
    fn keep_for_later(&mut self, peer: usize, message: Message) {
        let taken = Taken { message, counted: true };
        if taken.kind() == kind::ITEM {
            self.consumer(peer).item_taken_in();
        }
        self.surplus.bytes += taken.weight();
        self.taken_in[peer].push_back(taken);
    }

    fn report_surplus(&mut self, py: Python<'_>, peer: usize, turn: Option<usize>) -> PyResult<()> {
        let Surplus { bytes, most, reported, on_surplus } = &mut self.surplus;
        if *bytes <= *most || *reported {
            return Ok(());
        }
        *reported = true;
        if let (Some(on_surplus), Some(current)) = (on_surplus, turn) {
            on_surplus.call1(py, (current, peer, *bytes))?;
        }
        Ok(())
    }

    pub fn report_surplus_to(&mut self, most: u64, on_surplus: Py<PyAny>) {
        (self.surplus.most, self.surplus.on_surplus) = (most, Some(on_surplus));
    }

    /// If a peer waits for the dispatching process, receives items of all other peers before their turn, so that these
    /// peers continue.
    pub fn help_starving(&mut self, py: Python<'_>, collecting: &Collecting) -> PyResult<()> {
        let starving: Vec<bool> = (0..self.len()).map(|peer| self.consumer(peer).starves()).collect();
        while let Some(peer) = collecting.to_take_in(|peer| self.has_arrived(peer), |peer| starving[peer]) {
            self.take_in(py, peer, collecting.turn.next())?;
        }
        if starving.contains(&true) {
            let others = self.links.iter_mut().zip(starving).filter(|(_, starves)| !starves);
            others.for_each(|(link, _)| link.grant_one_more());
        }
        Ok(())
    }

    /// Receives all messages in a link after the sending process has exited.
    pub fn drain(&mut self, link: usize) -> PyResult<()> {
        loop {
            let mut message = Message::default();
            if !self.links[link].take(&mut message).map_err(errors::take)? {
                return Ok(());
            }
            let peer = self.peer_of(link, &message)?;
            self.keep_for_later(peer, message);
        }
    }

    pub fn received(&self, peer: usize, mut delivered: Account) -> Account {
        let items = self.taken_in[peer].iter().filter(|taken| taken.kind() == kind::ITEM);
        items.for_each(|taken| delivered.count(taken.message.digest));
        delivered
    }

    pub fn has_last(&self, peer: usize) -> bool {
        self.taken_in[peer].iter().any(|taken| matches!(taken.kind(), kind::END | kind::ERROR))
    }
}
