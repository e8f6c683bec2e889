//! The receiving side: takes the items of all workers in turn.
//!
//! Runs in main (over all workers' links), and in a worker over its single link from the dispatching process. Owns the
//! consumers' ends. Whatever it waits for, it wakes up several times a second to look after its peers.

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
#[pyclass(module = "torchdata._native")]
pub struct Collector {
    consumers: Vec<Consumer>,
    turn: RoundRobin,
    own: BellRef,
    windows: Vec<u64>,
    /// Whether the epoch is over: all have ended, or an error was raised.
    finished: bool,
    /// Processes whose end while we wait is a fault; the index tells `on_exit` which.
    watches: Vec<(usize, Watch)>,
    /// Called with the index of a watched process that has ended; raises.
    on_exit: Option<Py<PyAny>>,
    /// Called with (peer, description) of a failure; raises.
    on_error: Py<PyAny>,
    /// Called with (peer, message) for messages that arrive among the items.
    on_message: Option<Py<PyAny>>,
    /// In a worker: the control link, and the exception class to raise when a command waits there.
    interrupt: Option<(Probe, Py<PyAny>)>,
    timeout: Option<Duration>,
    /// What the timeout's message calls the peers.
    name: String,
    payload: Vec<u8>,
    /// The process that reads; a forked child must not take what is its parent's.
    generation: u64,
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
        Ok(Self {
            turn: RoundRobin::new(consumers.len(), in_order),
            windows: vec![1; consumers.len()],
            consumers,
            own: bell(board, own)?,
            finished: true,
            watches: Vec::new(),
            on_exit: None,
            on_error,
            on_message: None,
            interrupt: None,
            timeout: timeout.map_err(|error| PyValueError::new_err(format!("timeout: {error}")))?,
            name: name.to_owned(),
            payload: Vec::new(),
            generation: fork::generation(),
        })
    }

    /// Watches processes: when one has ended while this side waits, `on_exit(index)` is called and must raise.
    fn watch(&mut self, processes: Vec<(usize, i32)>, on_exit: Py<PyAny>) -> PyResult<()> {
        self.watches = processes
            .into_iter()
            .map(|(index, pid)| Watch::open(pid).map(|watch| (index, watch)))
            .collect::<Result<_, _>>()
            .map_err(errors::open)?;
        self.on_exit = Some(on_exit);
        Ok(())
    }

    /// Calls `on_message(peer, message)` for messages that arrive among the items.
    fn set_on_message(&mut self, on_message: Py<PyAny>) {
        self.on_message = Some(on_message);
    }

    /// Raises `exception` from every wait while something is pending in the control link.
    fn set_interrupt(&mut self, control: &Bound<'_, PyLink>, exception: Py<PyAny>) {
        self.interrupt = Some((control.get().0.probe(), exception));
    }

    /// Starts an epoch in which each peer may run `window` items ahead. To be called before the peers are told.
    fn start_epoch(&mut self, epoch: u64, window: u64) {
        self.turn.start(epoch);
        self.finished = false;
        for (consumer, own) in self.consumers.iter_mut().zip(&mut self.windows) {
            *own = window;
            consumer.start_epoch(window);
        }
    }

    /// Lets nobody run ahead any further; what was sent stays.
    fn pause(&mut self) {
        for consumer in &mut self.consumers {
            consumer.set_window(0);
        }
    }

    /// Lets everybody run ahead again.
    fn resume(&mut self) {
        for (consumer, &window) in self.consumers.iter_mut().zip(&self.windows) {
            consumer.set_window(window);
        }
    }

    /// Ends the epoch on this side: no item of it will be returned any more, and nobody makes one.
    fn stop(&mut self) {
        self.finished = true;
        self.pause();
    }

    /// Items taken from each peer in this epoch.
    fn taken(&self) -> Vec<u64> {
        self.consumers.iter().map(Consumer::taken).collect()
    }

    /// Bytes of shared memory that received items hold, by peer.
    fn leased(&self) -> Vec<u64> {
        self.consumers.iter().map(Consumer::leased).collect()
    }

    /// Tells the sender that `count` messages were dealt with (see `Sender.wait_acknowledged`).
    fn acknowledge(&mut self, count: u64) {
        self.consumers[0].grant(count);
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.generation != fork::generation() {
            return Err(PyRuntimeError::new_err(
                "this loader's workers belong to the parent of this process: make a DataLoader2 of its own here",
            ));
        }
        loop {
            if self.finished {
                return Ok(None);
            }
            let Some((peer, unit)) = self.take(py)? else {
                self.finished = true;
                return Ok(None);
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
                    self.stop();
                    let description = self.decode(py, peer, unit)?;
                    self.on_error.call1(py, (peer, description))?;
                }
                _ => self.message(py, peer, unit)?,
            }
        }
    }

    /// Waits for a message from `peer`, passing over what belongs to earlier epochs; `seconds` is the longest wait.
    ///
    /// Items in between are lost: this is for a peer that sends none.
    #[pyo3(signature = (peer, seconds = None))]
    fn receive<'py>(
        &mut self,
        py: Python<'py>,
        peer: usize,
        seconds: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let limit = seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
        let started = Instant::now();
        loop {
            while let Some(unit) = self.consumers[peer].take(0, &mut self.payload).map_err(errors::corrupted)? {
                if unit.kind & !kind::PAYLOAD_IN_BUFFER == kind::MESSAGE {
                    return self.decode(py, peer, unit).map(Some);
                }
            }
            let expired = || limit.is_some_and(|limit| started.elapsed() >= limit);
            if expired() {
                return Ok(None);
            }
            let consumer = &mut self.consumers[peer];
            let mut patience = Patience::new();
            let (watches, on_exit) = (&self.watches, &self.on_exit);
            let ready = || consumer.readable().unwrap_or(true) || expired();
            wait_until(py, &self.own, ready, |py| patience.look_after(py, watches, on_exit))?;
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

impl Collector {
    /// The next unit and whose it is; None when all have ended.
    #[inline]
    fn take(&mut self, py: Python<'_>) -> PyResult<Option<(usize, Unit)>> {
        let epoch = self.turn.epoch();
        loop {
            if self.turn.live() == 0 {
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
        let Self { consumers, turn, own, watches, on_exit, interrupt, timeout, name, .. } = self;
        let mut patience = Patience::new();
        let pending = interrupt.as_ref().map(|(probe, _)| probe.clone());
        let wanted = turn.next();
        let ready = || {
            turn.choose(|peer| consumers[peer].readable().unwrap_or(true)).is_some()
                || pending.as_ref().is_some_and(Probe::pending)
        };
        wait_until(py, own, ready, |py| {
            patience.look_after(py, watches, on_exit)?;
            match timeout {
                Some(limit) if patience.started.elapsed() >= *limit => Err(PyTimeoutError::new_err(format!(
                    "no item came from {name} {} within {} s (the `timeout` of the reading service); its pipe is \
                     slower than that, or stuck",
                    wanted.map_or("?".to_owned(), |peer| peer.to_string()),
                    limit.as_secs_f64(),
                ))),
                _ => Ok(()),
            }
        })?;
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
            Some(Buffer::Leased(lease)) => {
                // SAFETY: the lease is valid for its length and lives until the end of the arm.
                let payload = unsafe { std::slice::from_raw_parts(lease.as_mut_ptr(), lease.len()) };
                codec::decode(py, payload, buffers, may_lease)
            }
        }
    }

    fn message(&mut self, py: Python<'_>, peer: usize, unit: Unit) -> PyResult<()> {
        let message = self.decode(py, peer, unit)?;
        match &self.on_message {
            Some(on_message) => on_message.call1(py, (peer, message)).map(drop),
            None => Ok(()),
        }
    }
}
