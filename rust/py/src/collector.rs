//! The receiving side: takes the items of all workers in turn.
//!
//! Runs in main (over all workers' links), and in a worker over its single link from the dispatching process. Owns the
//! consumers' ends. Whatever it waits for, it wakes up several times a second to look after its peers.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use torchdata_core::bell::BellRef;
use torchdata_core::consumer::{Buffer, Consumer, Unit};
use torchdata_core::fork;
use torchdata_core::link::Probe;
use torchdata_core::liveness::Watch;
use torchdata_core::round_robin::RoundRobin;

use crate::codec;
use crate::errors;
use crate::sender::{bell, kind};
use crate::shared::{PyBellBoard, PyLink};
use crate::waiting::wait_until;

/// How often peers are looked after while waiting.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// An iterator over the items that arrive for the current epoch.
///
/// One thread reads at a time; any thread, and a signal handler that runs while the reader waits, may stop it.
#[pyclass(frozen, module = "torchdata._native")]
pub struct Collector {
    reader: Mutex<Reader>,
    /// Raised by `stop`: the epoch is over, whoever reads.
    stopped: Arc<AtomicBool>,
}

/// What the reading thread needs.
struct Reader {
    consumers: Vec<Consumer>,
    stopped: Arc<AtomicBool>,
    turn: RoundRobin,
    own: BellRef,
    windows: Vec<u64>,
    /// Processes whose end while we wait is a fault; the index tells `on_exit` which.
    watches: Vec<(usize, Watch)>,
    /// Called with the index of a watched process that has ended; raises.
    on_exit: Option<Py<PyAny>>,
    /// Called with (peer, description) of a failure; raises.
    on_error: Py<PyAny>,
    /// In a worker: the control link, and the exception class to raise when a command waits there.
    interrupt: Option<(Probe, Py<PyAny>)>,
    timeout: Option<Duration>,
    /// What the timeout's message calls the peers.
    name: String,
    payload: Vec<u8>,
    /// The process that reads; a forked child must not take what is its parent's.
    generation: u64,
}

impl Collector {
    /// The reader, unless another thread (or what this one interrupted) reads at the moment.
    fn reader(&self) -> PyResult<MutexGuard<'_, Reader>> {
        match self.reader.try_lock() {
            Ok(reader) => Ok(reader),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(
                "another thread is reading from this loader: a loader has one reader at a time",
            )),
        }
    }
}

#[pymethods]
impl Collector {
    /// Takes the consumer's end of each link.
    ///
    /// `peers` are the processes behind the links, `own` is this one: indices of bells. `on_error(peer, description)`
    /// is called for a failure and must raise.
    #[new]
    #[pyo3(signature = (links, board, own, peers, on_error, *, in_order = true, timeout = None, name = "worker process"))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python class")]
    fn new(
        links: Vec<Bound<'_, PyLink>>,
        board: &Bound<'_, PyBellBoard>,
        own: usize,
        peers: Vec<usize>,
        on_error: Py<PyAny>,
        in_order: bool,
        timeout: Option<f64>,
        name: &str,
    ) -> PyResult<Self> {
        if links.is_empty() || links.len() != peers.len() {
            return Err(PyValueError::new_err("a collector needs one peer for each of its links"));
        }
        let mut consumers = Vec::with_capacity(links.len());
        for (link, &peer) in links.iter().zip(&peers) {
            consumers.push(link.get().0.consumer(bell(board, peer)?).map_err(errors::open)?);
        }
        let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
        let stopped = Arc::new(AtomicBool::new(true));
        let reader = Reader {
            turn: RoundRobin::new(consumers.len(), in_order),
            windows: vec![1; consumers.len()],
            consumers,
            stopped: Arc::clone(&stopped),
            own: bell(board, own)?,
            watches: Vec::new(),
            on_exit: None,
            on_error,
            interrupt: None,
            timeout: timeout.map_err(|error| PyValueError::new_err(format!("timeout: {error}")))?,
            name: name.to_owned(),
            payload: Vec::new(),
            generation: fork::generation(),
        };
        Ok(Self { reader: Mutex::new(reader), stopped })
    }

    /// Watches processes: when one has ended while this side waits, `on_exit(index)` is called and must raise.
    fn watch(&self, processes: Vec<(usize, i32)>, on_exit: Py<PyAny>) -> PyResult<()> {
        let mut reader = self.reader()?;
        reader.watches = processes
            .into_iter()
            .map(|(index, pid)| Watch::open(pid).map(|watch| (index, watch)))
            .collect::<Result<_, _>>()
            .map_err(errors::open)?;
        reader.on_exit = Some(on_exit);
        Ok(())
    }

    /// Raises `exception` from every wait while something is pending in the control link.
    fn set_interrupt(&self, control: &Bound<'_, PyLink>, exception: Py<PyAny>) -> PyResult<()> {
        self.reader()?.interrupt = Some((control.get().0.probe(), exception));
        Ok(())
    }

    /// Starts an epoch in which each peer may run `window` items ahead. To be called before the peers are told.
    fn start_epoch(&self, epoch: u64, window: u64) -> PyResult<()> {
        let mut reader = self.reader()?;
        reader.check_process()?;
        reader.turn.start(epoch);
        reader.windows.fill(window);
        reader.consumers.iter_mut().for_each(|consumer| consumer.start_epoch(window));
        self.stopped.store(false, Relaxed);
        Ok(())
    }

    /// Lets nobody run ahead any further; what was sent stays.
    fn pause(&self) -> PyResult<()> {
        self.reader()?.pause();
        Ok(())
    }

    /// Lets everybody run ahead again.
    fn resume(&self) -> PyResult<()> {
        let Reader { consumers, windows, .. } = &mut *self.reader()?;
        for (consumer, &window) in consumers.iter_mut().zip(&*windows) {
            consumer.set_window(window);
        }
        Ok(())
    }

    /// Ends the epoch on this side: no item of it will be returned any more, and nobody makes one.
    ///
    /// May be called at any time, also by a signal handler or a thread while another reads.
    fn stop(&self) {
        self.stopped.store(true, Relaxed);
        if let Ok(mut reader) = self.reader()
            && reader.generation == fork::generation()
        {
            reader.pause();
        }
    }

    /// Items taken from each peer in this epoch.
    fn taken(&self) -> PyResult<Vec<u64>> {
        Ok(self.reader()?.consumers.iter().map(Consumer::taken).collect())
    }

    /// Bytes of shared memory that received items hold, by peer.
    fn leased(&self) -> PyResult<Vec<u64>> {
        Ok(self.reader()?.consumers.iter().map(Consumer::leased).collect())
    }

    /// Tells the sender that `count` messages were dealt with (see `Sender.wait_acknowledged`).
    fn acknowledge(&self, count: u64) -> PyResult<()> {
        self.reader()?.consumers[0].grant(count);
        Ok(())
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut reader = self.reader()?;
        reader.check_process()?;
        let next = reader.next(py);
        if self.stopped.load(Relaxed) {
            // By an error, or by somebody else while we waited.
            reader.pause();
        }
        next
    }

    /// Waits for a message from `peer`, passing over what belongs to earlier epochs; `seconds` is the longest wait.
    ///
    /// Items in between are lost: this is for a peer that sends none.
    #[pyo3(signature = (peer, seconds = None))]
    fn receive<'py>(&self, py: Python<'py>, peer: usize, seconds: Option<f64>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut reader = self.reader()?;
        let limit = seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let started = Instant::now();
        let expired = || limit.is_some_and(|limit| started.elapsed() >= limit);
        loop {
            let Reader { consumers, payload, .. } = &mut *reader;
            while let Some(unit) = consumers[peer].take(0, payload).map_err(errors::corrupted)? {
                if unit.kind & !kind::PAYLOAD_IN_BUFFER == kind::MESSAGE {
                    return reader.decode(py, peer, unit).map(Some);
                }
            }
            if expired() {
                return Ok(None);
            }
            let Reader { consumers, own, watches, on_exit, .. } = &mut *reader;
            let mut patience = Patience::new();
            let ready = || consumers[peer].readable().unwrap_or(true) || expired();
            wait_until(py, own, ready, |py| patience.look_after(py, watches, on_exit))?;
        }
    }
}

/// When the watched processes were looked after last.
struct Patience {
    started: Instant,
    looked: Instant,
}

impl Patience {
    fn new() -> Self {
        let now = Instant::now();
        Self { started: now, looked: now }
    }

    fn look_after(&mut self, py: Python<'_>, watches: &[(usize, Watch)], on_exit: &Option<Py<PyAny>>) -> PyResult<()> {
        let now = Instant::now();
        if now - self.looked < LOOK_AFTER {
            return Ok(());
        }
        self.looked = now;
        if let Some(on_exit) = on_exit {
            for (index, watch) in watches {
                if watch.exited() {
                    on_exit.call1(py, (*index,))?;
                }
            }
        }
        Ok(())
    }
}

impl Reader {
    /// An error in a forked child, which must not take what is its parent's.
    fn check_process(&self) -> PyResult<()> {
        if self.generation == fork::generation() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(
            "this loader's workers belong to the parent of this process: make a DataLoader2 of its own here",
        ))
    }

    fn pause(&mut self) {
        self.consumers.iter_mut().for_each(|consumer| consumer.set_window(0));
    }

    fn next<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        while !self.stopped.load(Relaxed) {
            let Some((peer, unit)) = self.take(py)? else {
                self.stopped.store(true, Relaxed);
                break;
            };
            match unit.kind & !kind::PAYLOAD_IN_BUFFER {
                kind::ITEM => {
                    self.turn.advance();
                    let item = self.decode(py, peer, unit)?;
                    self.consumers[peer].item_taken();
                    return Ok(Some(item));
                }
                kind::END => self.turn.end(peer),
                kind::ERROR => {
                    self.stopped.store(true, Relaxed);
                    let description = self.decode(py, peer, unit)?;
                    self.on_error.call1(py, (peer, description))?;
                }
                _ => {} // an answer that nobody waits for any more
            }
        }
        Ok(None)
    }

    /// The next unit and whose it is; None when all have ended.
    #[inline]
    fn take(&mut self, py: Python<'_>) -> PyResult<Option<(usize, Unit)>> {
        let epoch = self.turn.epoch();
        loop {
            if self.turn.live() == 0 || self.stopped.load(Relaxed) {
                return Ok(None);
            }
            let consumers = &mut self.consumers;
            // A corrupted ring counts as ready: taking from it reports the error.
            let mut ready = |peer: usize| consumers[peer].readable().unwrap_or(true);
            if let Some(peer) = self.turn.choose(&mut ready) {
                let taken = self.consumers[peer].take(epoch, &mut self.payload).map_err(errors::corrupted)?;
                match taken {
                    Some(unit) if unit.epoch == epoch => return Ok(Some((peer, unit))),
                    // The sender has gone on to a later epoch: this one was given up, a command will tell.
                    Some(_) => continue,
                    None => continue, // leftovers of an older epoch
                }
            }
            self.wait(py)?;
        }
    }

    fn wait(&mut self, py: Python<'_>) -> PyResult<()> {
        let Self { consumers, turn, own, watches, on_exit, interrupt, timeout, name, stopped, .. } = self;
        let mut patience = Patience::new();
        let pending = interrupt.as_ref().map(|(probe, _)| probe.clone());
        let wanted = turn.next();
        let ready = || {
            turn.choose(|peer| consumers[peer].readable().unwrap_or(true)).is_some()
                || pending.as_ref().is_some_and(Probe::pending)
                || stopped.load(Relaxed)
        };
        let mut exited = false;
        let waited = wait_until(py, own, ready, |py| {
            patience.look_after(py, watches, on_exit).inspect_err(|_| exited = true)?;
            match timeout {
                Some(limit) if patience.started.elapsed() >= *limit => Err(PyTimeoutError::new_err(format!(
                    "no item came from {name} {} within {} s (the `timeout` of the reading service); its pipe is \
                     slower than that, or stuck",
                    wanted.map_or("?".to_owned(), |peer| peer.to_string()),
                    limit.as_secs_f64(),
                ))),
                _ => Ok(()),
            }
        });
        if exited {
            // What was published between the last look and the death goes first; the next wait reports the death again.
            if turn.choose(|peer| consumers[peer].readable().unwrap_or(true)).is_some() {
                return Ok(());
            }
            stopped.store(true, Relaxed);
        }
        waited?;
        if let Some((probe, exception)) = &self.interrupt
            && probe.pending()
        {
            return Err(PyErr::from_value(exception.bind(py).call0()?));
        }
        Ok(())
    }

    fn decode<'py>(&mut self, py: Python<'py>, peer: usize, unit: Unit) -> PyResult<Bound<'py, PyAny>> {
        let mut buffers = unit.buffers;
        let long = if unit.kind & kind::PAYLOAD_IN_BUFFER != 0 { buffers.pop() } else { None };
        // What is leased already includes this unit; where that is over the limit, its buffers are copied out.
        let may_lease = !self.consumers[peer].should_copy(0);
        match long {
            None => codec::decode(py, &self.payload, buffers, may_lease),
            Some(Buffer::Owned(payload)) => codec::decode(py, &payload, buffers, may_lease),
            Some(Buffer::Leased(lease)) => codec::decode(py, &codec::private_copy(&lease), buffers, may_lease),
        }
    }
}
