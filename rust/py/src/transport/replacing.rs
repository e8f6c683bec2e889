//! Replaces processes that exit during an epoch.
//!
//! The main process first receives all complete messages of the exited process. The replacement resumes from the latest
//! snapshot of the exited process, and uses a new link.

use pyo3::prelude::*;
use torchdata_core::protocol::Account;

use super::links::PyLink;
use super::reader::Reader;
use super::snapshots::{KeptPositions, kept_positions};
use super::watched::{Replacing, Sign};
use crate::errors;

/// A replaced process, as a tuple of its index, the link of the new process or None, and the new process's ID or
/// descriptor.
type Replacement<'py> = (usize, Option<Bound<'py, PyLink>>, Sign<'py>);

impl Reader {
    #[cold]
    pub fn replace_processes(&mut self, py: Python<'_>, also: Vec<usize>) -> PyResult<()> {
        let Some(Replacing { on_loss, on_replace }) = self.watch.replacing(py) else { return Ok(()) };
        let exited = self.watch.all_exited(also);
        self.drain(py, &exited)?;
        let received: Vec<u64> = self.all_received(py).iter().map(|account| account.items).collect();
        let asked = on_loss.call1(py, (exited.clone(), received, self.have_ended(), self.peers.paused))?;
        let replaced: Vec<usize> = asked.extract(py)?;
        if !replaced.is_empty() {
            self.drain(py, &replaced)?; // `on_loss` may have stopped further processes
            let replacements = on_replace.call1(py, (replaced, self.positions_received(py), self.have_ended()))?;
            for replacement in replacements.bind(py).try_iter()? {
                self.inherit(replacement?.extract()?)?;
            }
        }
        self.watch.forget(&exited);
        self.collecting.replaced();
        self.clock.stop();
        Ok(())
    }

    fn inherit(&mut self, (index, link, sign): Replacement<'_>) -> PyResult<()> {
        if let (Some(consumer), Some(link)) = (self.peers.links.get_mut(index), link) {
            *consumer = link.get().0.consumer_after(consumer).map_err(errors::open)?;
        }
        self.watch.succeed(index, sign);
        Ok(())
    }

    /// Receives all messages of exited processes, except for the dispatching process, which sends nothing to this
    /// reader.
    fn drain(&mut self, py: Python<'_>, exited: &[usize]) -> PyResult<()> {
        let links = self.peers.links.len();
        exited.iter().filter(|&&link| link < links).try_for_each(|&link| self.peers.drain(link))?;
        (0..self.peers.len())
            .filter(|peer| exited.contains(&self.peers.link_of(*peer)))
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|peer| self.keep_taken_in(py, peer))
    }

    fn all_received(&self, py: Python<'_>) -> Vec<Account> {
        (0..self.peers.len())
            .map(|peer| self.peers.received(peer, self.progress.books.with(py, |books| books.taken(peer))))
            .collect()
    }

    fn have_ended(&self) -> Vec<bool> {
        (0..self.peers.len()).map(|peer| self.collecting.turn.is_ended(peer) || self.peers.has_last(peer)).collect()
    }

    fn positions_received(&self, py: Python<'_>) -> KeptPositions {
        let received = self.all_received(py);
        self.progress.books.with(py, |books| kept_positions(py, books, &books.positions_at(received)))
    }
}
