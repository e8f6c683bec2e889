//! Replaces processes that have exited in the middle of a stream.
//!
//! This runs in the main process, in the reading thread. All units that an exited process had published count as
//! received, including snapshots. Therefore its link is drained, and the replacement resumes from the latest snapshot,
//! over a new link. Leases keep the memory of the old link. Python decides which processes are replaced, and starts the
//! replacements.

use pyo3::prelude::*;
use torchdata_core::protocol::Account;

use super::links::PyLink;
use super::reader::Reader;
use super::snapshots::{KeptPlaces, kept_places};
use super::watched::{Replacing, Sign};
use crate::errors;

/// A replacement process: its index, its links, and its process id or descriptor.
type Heir<'py> = (usize, Vec<Bound<'py, PyLink>>, Sign<'py>);

impl Reader {
    /// Replaces the processes `also`, and all others that have exited.
    #[cold]
    pub fn replace_dead(&mut self, py: Python<'_>, also: Vec<usize>) -> PyResult<()> {
        let Some(Replacing { on_death, on_replace, workers }) = self.watch.replacing(py) else { return Ok(()) };
        let dead = self.watch.all_dead(also);
        self.drain(py, &dead, workers)?;
        let received: Vec<u64> = self.all_received(py).iter().map(|account| account.items).collect();
        let asked = on_death.call1(py, (dead.clone(), received, self.have_ended(), self.peers.are_paused()))?;
        let replaced: Vec<usize> = asked.extract(py)?;
        if !replaced.is_empty() {
            self.drain(py, &replaced, workers)?; // other processes may have been stopped for this
            let heirs = on_replace.call1(py, (replaced, self.places_received(py), self.have_ended()))?;
            for heir in heirs.bind(py).try_iter()? {
                self.inherit(heir?.extract()?, workers)?;
            }
        }
        self.watch.forget(&dead);
        self.collecting.replaced();
        self.clock.stop();
        Ok(())
    }

    fn inherit(&mut self, (index, links, sign): Heir<'_>, workers: usize) -> PyResult<()> {
        for (peer, link) in self.peers.all_mut().iter_mut().skip(index).step_by(workers).zip(links) {
            let consumer = &mut peer.consumer;
            *consumer = link.get().0.consumer_after(consumer).map_err(errors::open)?;
        }
        self.watch.succeed(index, sign);
        Ok(())
    }

    /// Takes all units that exited peers had published, and keeps the snapshots. A dispatching process sends nothing on
    /// these links.
    fn drain(&mut self, py: Python<'_>, dead: &[usize], workers: usize) -> PyResult<()> {
        for peer in (0..self.peers.len()).filter(|peer| dead.contains(&(peer % workers))) {
            for taken in self.peers.drain(peer)? {
                self.keep_unit(py, peer, &taken.unit)?;
            }
        }
        Ok(())
    }

    fn all_received(&self, py: Python<'_>) -> Vec<Account> {
        (0..self.peers.len()).map(|peer| self.peers.received(peer, self.progress.delivered(py, peer))).collect()
    }

    fn have_ended(&self) -> Vec<bool> {
        (0..self.peers.len()).map(|peer| self.collecting.is_ended(peer) || self.peers.has_last(peer)).collect()
    }

    fn places_received(&self, py: Python<'_>) -> KeptPlaces {
        let received = self.all_received(py);
        self.progress.books.with(py, |books| kept_places(py, books, &books.places_at(received)))
    }
}
