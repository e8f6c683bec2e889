//! Main's knowledge of the readers of freely dealt items, and how it is laid out in states.
//!
//! It stands in the record in shared memory once the dispatching process has begun the epoch there, and before that in
//! what the epoch was begun with. Both are found whole at any time by threads that have the GIL.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use torchdata_core::error::Corrupted;
use torchdata_core::link::dealing_record::DealingRecord;
use torchdata_core::protocol::{DealEntry, Owners};

use crate::errors;

/// Owners as Python has them: the position of the first entry, and two bytes for each.
pub type KeptOwners = (u64, Py<PyBytes>);

/// Returns the owners among so many readers.
pub fn unkept_owners(py: Python<'_>, (since, entries): KeptOwners, readers: usize) -> PyResult<Owners> {
    let (words, rest) = entries.as_bytes(py).as_chunks::<2>();
    let entries: Option<Vec<DealEntry>> =
        words.iter().map(|&word| DealEntry::from_raw(u16::from_le_bytes(word), readers)).collect();
    match entries.filter(|_| rest.is_empty()) {
        Some(entries) => Ok(Owners { since, entries }),
        None => Err(PyValueError::new_err(format!("it does not say to which of {readers} workers items were dealt"))),
    }
}

/// Raises ValueError if these entries are not those of dealt items among so many workers.
#[pyfunction]
pub fn check_owners(py: Python<'_>, entries: Py<PyBytes>, workers: usize) -> PyResult<()> {
    unkept_owners(py, (0, entries), workers).map(drop)
}

fn kept_owners(py: Python<'_>, owners: &Owners) -> KeptOwners {
    let bytes: Vec<u8> = owners.entries.iter().flat_map(|owner| owner.raw().to_le_bytes()).collect();
    (owners.since, PyBytes::new(py, &bytes).unbind())
}

/// The owners of the epoch that runs.
pub struct KnownOwners {
    record: Option<Arc<DealingRecord>>,
    readers: usize,
    epoch: u32,
    /// The entries with which the epoch was begun; None if its items are dealt in turn.
    begun: Option<Owners>,
}

impl KnownOwners {
    pub fn new(readers: usize) -> Self {
        Self { record: None, readers, epoch: 0, begun: None }
    }

    pub fn readers(&self) -> usize {
        self.readers
    }

    /// Reads a record from now on.
    pub fn follow(&mut self, record: Arc<DealingRecord>) {
        self.record = Some(record);
    }

    /// Begins an epoch, dealt freely if there are owners.
    pub fn begin(&mut self, epoch: u32, owners: Option<Owners>) {
        (self.epoch, self.begun) = (epoch, owners);
    }

    fn read(&self, from: u64) -> Result<Option<Owners>, Corrupted> {
        let (Some(record), Some(begun)) = (&self.record, &self.begun) else { return Ok(None) };
        match record.read(self.epoch, from, self.readers)? {
            None if from < begun.since => Err(Corrupted("the record of dealt items begins too late")),
            None => Ok(Some(Owners { since: from, entries: begun.from(from) })),
            found => Ok(found),
        }
    }

    /// The position, or the one from which this run of the epoch began, if that is later: no state is of before it.
    pub fn within(&self, position: u64) -> u64 {
        self.begun.as_ref().map_or(position, |begun| position.max(begun.since))
    }

    /// Returns the owners from a position on; None if items are dealt in turn.
    pub fn from(&self, py: Python<'_>, position: u64) -> PyResult<Option<KeptOwners>> {
        let owners = self.read(position).map_err(errors::corrupted)?;
        Ok(owners.map(|owners| kept_owners(py, &owners)))
    }

    /// Makes what is known from a position on what the epoch was begun with: other processes begin it with that.
    pub fn begin_again(&mut self, position: u64) -> PyResult<()> {
        self.begun = self.read(position).map_err(errors::corrupted)?;
        Ok(())
    }

    /// Notes that nobody asks for what was before a position.
    pub fn need_from(&self, position: u64) {
        if let (Some(record), Some(_)) = (&self.record, &self.begun) {
            record.need_from(self.epoch, position);
        }
    }
}
