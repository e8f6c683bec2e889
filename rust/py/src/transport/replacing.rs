//! Other processes in the places of those that have died, in the middle of a stream.
//!
//! Runs in main, in the thread that reads. What a dead process had committed to its link counts as received, snapshots among it; so
//! its link is drained, and the one that takes its place goes on from the newest snapshot, over a link of its own. Leases stay with
//! the memory of the old one. Who is replaced, and by whom, is Python's to say.

use std::collections::VecDeque;

use pyo3::prelude::*;
use torchdata_core::link::consumer::Unit;
use torchdata_core::protocol::Account;

use super::kinds as kind;
use super::links::PyLink;
use super::reader::{Peer, Reader, Taken, weight};
use super::snapshots::{self, Entry, Kept, KeptDealt, entry, kept, kept_dealt};
use super::watched::{Mortal, Replacing};
use crate::errors;

/// What was received: by peer, how much and the newest snapshot; the dispatching process's that fits to these.
type Received = (Vec<(Entry, Option<Kept>)>, Option<KeptDealt>);
/// Who takes a place: whose, over which link, and its process number.
type Heir<'py> = (usize, Option<Bound<'py, PyLink>>, i32);

impl Reader {
    /// Replaces the processes `also`, and whatever else has died.
    #[cold]
    pub fn replace_dead(&mut self, py: Python<'_>, also: Vec<usize>) -> PyResult<()> {
        let Some(Replacing { on_death, on_replace }) = &self.replacing else { return Ok(()) };
        let (on_death, on_replace) = (on_death.clone_ref(py), on_replace.clone_ref(py));
        let mut dead = also;
        dead.extend(self.watches.iter().filter(|(_, process)| process.has_died()).map(|&(index, _)| index));
        dead.sort_unstable();
        dead.dedup();
        self.drain(py, &dead)?;
        let peers = 0..self.peers.len();
        let (received, ended): (Vec<u64>, Vec<bool>) =
            peers.map(|peer| (self.received(py, peer).items, self.has_ended(peer))).unzip();
        let replaced: Vec<usize> = on_death.call1(py, (dead.clone(), received, ended, self.paused))?.extract(py)?;
        if !replaced.is_empty() {
            self.drain(py, &replaced)?; // others may have been ended for it
            let ended: Vec<bool> = (0..self.peers.len()).map(|peer| self.has_ended(peer)).collect();
            let heirs = on_replace.call1(py, (replaced, self.all_received(py), ended))?;
            for heir in heirs.bind(py).try_iter()? {
                self.inherit(heir?.extract()?)?;
            }
        }
        // Those that are left have done what is wanted of them.
        self.watches.retain(|(index, process)| !(dead.contains(index) && process.has_died()));
        self.collecting.replaced();
        self.dead = None;
        self.waiting = None;
        Ok(())
    }

    fn inherit(&mut self, (index, link, pid): Heir<'_>) -> PyResult<()> {
        if let Some(link) = link {
            let consumer = &mut self.peers[index].consumer;
            *consumer = link.get().0.consumer_after(consumer).map_err(errors::open)?;
        }
        self.watches.retain(|&(other, _)| other != index);
        self.watches.push((index, Mortal::of(pid)));
        Ok(())
    }

    /// Takes in all that dead peers had committed. Their memory is nobody else's: what lies in it is not copied.
    fn drain(&mut self, py: Python<'_>, dead: &[usize]) -> PyResult<()> {
        let peers = self.peers.len(); // a dispatching process sends nothing here
        for &peer in dead.iter().filter(|&&peer| peer < peers) {
            loop {
                let Peer { consumer, taken_in } = &mut self.peers[peer];
                let mut unit = Unit::default();
                if !consumer.take(&mut unit).map_err(errors::take)? {
                    break;
                }
                if unit.kind & kind::WHAT == kind::ITEM {
                    consumer.item_taken_in();
                }
                let taken = Taken { unit, counted: true };
                self.surplus += weight(&taken);
                taken_in.push_back(taken);
            }
            let all = std::mem::take(&mut self.peers[peer].taken_in);
            let (snapshots, others): (VecDeque<_>, _) =
                all.into_iter().partition(|taken| snapshots::is_snapshot(taken.unit.kind));
            self.peers[peer].taken_in = others;
            for taken in &snapshots {
                self.surplus = self.surplus.saturating_sub(weight(taken));
                self.keep_unit(py, peer, &taken.unit)?;
            }
        }
        Ok(())
    }

    /// What was received of a peer, delivered or not.
    fn received(&self, py: Python<'_>, peer: usize) -> Account {
        let mut account = self.books.with(py, |books| books.taken(peer));
        for taken in &self.peers[peer].taken_in {
            if taken.unit.kind & kind::WHAT == kind::ITEM {
                account.count(taken.unit.digest);
            }
        }
        account
    }

    /// Whether nothing more comes of a peer in this stream.
    fn has_ended(&self, peer: usize) -> bool {
        let is_last = |taken: &Taken| matches!(taken.unit.kind & kind::WHAT, kind::END | kind::ERROR);
        self.collecting.is_ended(peer) || self.peers[peer].taken_in.iter().any(is_last)
    }

    fn all_received(&self, py: Python<'_>) -> Received {
        let accounts = (0..self.peers.len()).map(|peer| self.received(py, peer)).collect();
        self.books.with(py, |books| {
            let places = books.places_at(accounts);
            let shares: Vec<_> =
                places.iter().map(|place| place.snapshot.map(|one| one.share).unwrap_or_default()).collect();
            let dealt = books.dealt_before(&shares).map(|one| kept_dealt(py, one));
            let places = places.iter().map(|place| (entry(place.given), place.snapshot.map(|one| kept(py, one))));
            (places.collect(), dealt)
        })
    }
}
