//! Defines the extension module `torchdata._native`, which converts arguments, calls the Rust core, and wraps results.

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
mod held_lock;
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

/// Makes the kernel resume this process, if suspended, when its parent exits. Only the main thread may call this
/// function.
#[pyfunction]
fn continue_with_parent() {
    liveness::continue_with_parent();
}

/// Makes this process ignore the signal `number`, unless the process itself has sent the signal.
#[pyfunction]
fn ignore_signal(number: i32) -> PyResult<()> {
    Ok(signals::ignore_signal(number)?)
}

#[pyfunction]
fn name_process(name: &str) {
    process::naming::name_this_thread(name);
}

#[pyfunction]
fn is_portable() -> bool {
    process::portable()
}

/// Returns whether this process uses the portable fallback, because the system lacks or forbids a feature of Linux.
#[pyfunction]
fn system_lacks() -> bool {
    process::lacks_system_calls()
}

/// Creates objects that PyO3 would otherwise create later under a lock, which a forked child could inherit in locked
/// state.
fn initialize(py: Python<'_>) -> PyResult<()> {
    py.get_type::<PanicException>();
    py.detach(|| Python::attach(|_| ()));
    fork::generation();
    pipes::handing::signals(py).map(drop)
}

/// A free-threaded Python enables the GIL on import of this module, because some classes rely on the GIL.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    initialize(module.py())?;
    forking::register()?;
    module.add("Finalized", finalized::finalized_type(module.py())?)?;
    module.add("IteratorGuard", pipes::guard::guard_type(module.py())?)?;
    macro_rules! add {
        ($($class:ty),+; $($function:path),+;) => {
            $(module.add_class::<$class>()?;)+
            $(module.add_function(wrap_pyfunction!($function, module)?)?;)+
        };
    }
    add!(
        pipes::token::IterationToken, pipes::calling::TimedCall, pipes::iterators::FilterIterator,
        pipes::iterators::BatchIterator, pipes::iterators::IndexedIterator, pipes::sequence::SequenceIterator,
        pipes::sharing::ShareIterator, pipes::delivery::Delivery, pipes::delivery::DeliveryIterator,
        pipes::handing::HandingIterator, descriptors::OwnedDescriptor, transport::links::PyLink, transport::links::PyBellBoard,
        transport::carrier::PyCarrier, transport::stats::PyStatsBoard, buffers::LeasedBuffer, buffers::ArenaBuffer,
        held_lock::HeldLock, shard_globals::Exchange, shard_globals::SavedGlobals, shard_globals::ShardTurns, transport::sender::Sender,
        transport::collector::Collector, transport::collector::ItemStream, protocol::PyCommandState,
        protocol::PyReplacing, queue::ReadAheadQueue, queue::ReadAheadHold, queue::SourceReader,
        pipes::turn::SharedIterator, pipes::turn::Turn, ranks::PyMeeting, seed::PySeedGenerator,
        formats::gzip::GzipReader, formats::tfrecord::TFRecordReader;
        pipes::guard::guard_iterator, pipes::packing::row_bounds, pipes::packing::row_positions,
        pipes::sampling::sample_order, protocol::order_of, buffers::bytes_in_place,
        formats::pickle::check_plain_pickle, formats::tar::tar_file_header, formats::tar::tar_pax_records,
        formats::words::words_of,
        images::decode_jpeg_part, images::resize_pixels, transport::links::drop_inherited, continue_with_parent, exit_with_parent,
        ignore_signal, name_process, is_portable, system_lacks, forking::fork_waits_for, watching::watch_with,
        watching::watch_before_fork, watching::watch_after_fork, watching::watch_is_over;
    );
    Ok(())
}
