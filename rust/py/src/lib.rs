//! The extension module `torchdata._native`, which converts arguments, calls the engine, and wraps results.
// The macros of PyO3 generate items without docs and with undocumented unsafe blocks.
#![allow(missing_docs)]

use pyo3::panic::PanicException;
use pyo3::prelude::*;
use torchdata_core::process::liveness::{self, Watch, exit_with};
use torchdata_core::process::{self, fork, signals};

mod buffers;
mod codec;
mod descriptors;
mod enter;
mod errors;
mod finalized;
mod forking;
mod formats;
mod gil_cell;
mod images;
mod numpy_api;
mod panics;
mod pipes;
mod protocol;
mod queue;
mod ranks;
mod seconds;
mod seed;
mod shard_globals;
mod transport;
mod watching;

#[pyfunction]
fn exit_with_parent(pid: i32) -> PyResult<()> {
    Watch::open(pid).and_then(exit_with).map_err(errors::open)
}

/// Makes the kernel resume this process, if suspended, when the parent exits. Must be called by the main thread.
#[pyfunction]
fn continue_with_parent() {
    liveness::continue_with_parent();
}

/// Installs a handler that ignores a signal. Programs that this process executes do not inherit the handler, but would
/// inherit an ignored signal.
#[pyfunction]
fn take_no_notice(number: i32) -> PyResult<()> {
    Ok(signals::take_no_notice(number)?)
}

/// Sets the name of this process. Must be called by the main thread.
#[pyfunction]
fn name_process(name: &str) {
    process::naming::name_this_thread(name);
}

#[pyfunction]
fn is_portable() -> bool {
    process::portable()
}

/// Returns whether the portable fallback is used because the system lacks or forbids a feature of Linux.
#[pyfunction]
fn system_lacks() -> bool {
    process::choice() == process::Choice::Lacking
}

/// Creates objects that PyO3 would otherwise create later while it holds a lock, which a forked child could inherit.
/// Python's import lock prevents a fork during this call.
fn initialize(py: Python<'_>) -> PyResult<()> {
    py.get_type::<PanicException>();
    py.detach(|| Python::attach(|_| ()));
    fork::generation();
    pipes::handing::signals(py).map(drop)
}

/// Some classes rely on the GIL, which a free-threaded Python therefore enables.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    initialize(module.py())?;
    forking::register()?;
    module.add("Finalized", finalized::finalized_type(module.py())?)?;
    module.add_class::<pipes::token::IterationToken>()?;
    module.add("IteratorGuard", pipes::guard::guard_type(module.py())?)?;
    module.add_function(wrap_pyfunction!(pipes::guard::guard_iterator, module)?)?;
    module.add_class::<pipes::calling::TimedCall>()?;
    module.add_class::<pipes::iterators::FilterIterator>()?;
    module.add_class::<pipes::iterators::IndexedIterator>()?;
    module.add_class::<pipes::sequence::SequenceIterator>()?;
    module.add_class::<pipes::sharing::ShareIterator>()?;
    module.add_function(wrap_pyfunction!(pipes::packing::row_bounds, module)?)?;
    module.add_function(wrap_pyfunction!(pipes::packing::row_positions, module)?)?;
    module.add_function(wrap_pyfunction!(pipes::sampling::sample_order, module)?)?;
    module.add_class::<pipes::delivery::Delivery>()?;
    module.add_class::<pipes::delivery::DeliveryIterator>()?;
    module.add_class::<pipes::handing::HandingIterator>()?;
    module.add_class::<descriptors::OwnedDescriptor>()?;
    module.add_class::<transport::links::PyLink>()?;
    module.add_class::<transport::links::PyBellBoard>()?;
    module.add_class::<transport::carrier::PyCarrier>()?;
    module.add_class::<transport::stats::PyStatsBoard>()?;
    module.add_class::<buffers::LeasedBuffer>()?;
    module.add_class::<buffers::ArenaBuffer>()?;
    module.add_class::<shard_globals::Exchange>()?;
    module.add_class::<shard_globals::SavedGlobals>()?;
    module.add_class::<shard_globals::ShardTurns>()?;
    module.add_class::<transport::sender::Sender>()?;
    module.add_class::<transport::collector::Collector>()?;
    module.add_class::<transport::collector::ItemStream>()?;
    module.add_class::<protocol::PyObedience>()?;
    module.add_class::<protocol::PyReplacing>()?;
    module.add_function(wrap_pyfunction!(protocol::order_of, module)?)?;
    module.add_class::<queue::ReadAheadQueue>()?;
    module.add_class::<queue::ReadAheadHold>()?;
    module.add_class::<queue::SourceReader>()?;
    module.add_class::<pipes::turn::SharedIterator>()?;
    module.add_class::<pipes::turn::Turn>()?;
    module.add_class::<ranks::PyMeeting>()?;
    module.add_class::<seed::PySeedGenerator>()?;
    module.add_class::<formats::gzip::GzipReader>()?;
    module.add_class::<formats::tfrecord::TFRecordReader>()?;
    module.add_function(wrap_pyfunction!(buffers::bytes_in_place, module)?)?;
    module.add_function(wrap_pyfunction!(formats::pickle::check_plain_pickle, module)?)?;
    module.add_function(wrap_pyfunction!(formats::tar::tar_file_header, module)?)?;
    module.add_function(wrap_pyfunction!(formats::tar::tar_pax_records, module)?)?;
    module.add_function(wrap_pyfunction!(images::resize_pixels, module)?)?;
    module.add_function(wrap_pyfunction!(transport::links::drop_inherited, module)?)?;
    module.add_function(wrap_pyfunction!(continue_with_parent, module)?)?;
    module.add_function(wrap_pyfunction!(exit_with_parent, module)?)?;
    module.add_function(wrap_pyfunction!(take_no_notice, module)?)?;
    module.add_function(wrap_pyfunction!(name_process, module)?)?;
    module.add_function(wrap_pyfunction!(is_portable, module)?)?;
    module.add_function(wrap_pyfunction!(system_lacks, module)?)?;
    module.add_function(wrap_pyfunction!(forking::fork_waits_for, module)?)?;
    module.add_function(wrap_pyfunction!(watching::watch_with, module)?)?;
    module.add_function(wrap_pyfunction!(watching::watch_before_fork, module)?)?;
    module.add_function(wrap_pyfunction!(watching::watch_after_fork, module)?)?;
    module.add_function(wrap_pyfunction!(watching::watch_is_over, module)?)?;
    Ok(())
}
