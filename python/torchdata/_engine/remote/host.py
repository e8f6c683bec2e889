"""The host of a worker on another machine: a Ray actor that runs next to the worker's own process.

Role: the host runs on a machine that Ray chooses, and spawns the worker as a separate process. The worker has the same
links as a worker on the main process's machine, but the links lead to the host. User code runs in the worker's process,
has its own main thread and interpreter lock, and can crash only the worker. The host forwards the contents of the
worker's links without decoding them. The host runs no user code, and its worker exits together with the host.

A pair of links, one in each direction, is called a lane, and is served by two threads of the actor. One thread receives
messages from the main process (`tell`), and one thread returns messages from the worker (`pull`). The main process
always has some calls of `pull` waiting. All calls are numbered, because the calls of an actor's threads may arrive out
of order. The first lane transmits commands to the worker, and the worker's items. The second lane transmits the items
of the dispatching process, which runs on the main process's machine.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from queue import SimpleQueue
from typing import Any

import torchdata
from torchdata._engine.processes.crossing import Handle, SharedPickle
from torchdata._engine.processes.start import new_child, start_all
from torchdata._engine.remote.dispatching import without_main
from torchdata._engine.workers.child import MAIN, ChildSetup, CommonSetup, Lines, run_child
from torchdata._engine.workers.group import default_budget
from torchdata._engine.workers.members import CONTROL_RING
from torchdata._native import BellBoard, Carrier, Link, StatsBoard
from torchdata._observe.stats.counting import PIPES

#: Seconds after which `pull` returns even without content, so that both sides know that the connection works.
PULSE = 1.0
#: Seconds without a message from the main process after which a host exits, because Ray may have failed to end the
#: host.
DEAF = 600.0
#: Seconds between two checks: `LOOK` while the host waits for the worker's exit, and `GLANCE` while the host waits for
#: free space for a command or for the start of a child.
LOOK, GLANCE = 5.0, 0.002
#: Seconds between two reports of the worker's counters.
SEEN = 0.5
#: Parts of a frame with at least this many bytes are sent outside the pickle.
APART = 32 << 10
#: If this many bytes wait to be passed to the worker, the main process must not send more.
FULL = 8 << 20
#: The indices of the worker and of the dispatching process on the host's machine. An index selects the process's bell
#: and its page of counters.
WORKER, DISPATCHER = 1, 2


@dataclass(frozen=True)
class RemoteSetup:
    """The setup of a host.

    Args:
        name: the name of the worker in messages.
        program_class: module and name of the program's class.
        cadence: how often the worker takes snapshots.
        budget: bytes of shared memory for the items that the worker sends.
        full_stats: whether the time of each pipe is measured.
        counts: the statistics of the processes that ran this worker before, as bytes.
        dispatcher_page: the index, in the main process, of the dispatching process's page of counters; None if nothing
            is dispatched.
        window: number of items that the dispatching process may be ahead of the worker.
    """

    name: str
    worker_id: int
    num_workers: int
    program_class: tuple[str, str]
    cadence: tuple[float, float]
    budget: int
    full_stats: bool
    counts: bytes
    dispatcher_page: int | None
    window: int

    @classmethod
    def of(cls, setup: ChildSetup, budget: int) -> RemoteSetup:
        """Creates the setup of a worker on another machine from the setup of a child on the main process's machine."""
        return cls(
            name=setup.name,
            worker_id=setup.worker_id,
            num_workers=setup.num_workers,
            program_class=setup.program_class,
            cadence=setup.cadence,
            budget=budget,
            full_stats=setup.stats.shared.full,
            counts=setup.stats.shared.carry_out(setup.page),
            dispatcher_page=None if setup.lines.dispatched is None else setup.dispatcher_page,
            window=setup.window,
        )


@dataclass(frozen=True)
class About:
    """The description of a worker that has started, or failed to start.

    Args:
        pid: the process id of the worker.
        host: the process id of the worker's host.
        node: the name and address of the machine.
        address: the address of the machine.
        exitcode: the exit code of the worker; None while it runs.
        versions: the versions of Python and of libraries, by name.
    """

    pid: int
    host: int
    node: str
    address: str
    exitcode: int | None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """The state of a worker, as reported by its host.

    Args:
        counts: the counters of the worker.
        times: the nanoseconds that the worker has run, has waited for a processor, and has existed.
        is_stopped: whether the process is stopped, by a signal or a debugger.
    """

    counts: bytes
    times: tuple[int, int, int]
    is_stopped: bool


@dataclass(frozen=True)
class Told:
    """A message from the main process to a host.

    Args:
        number: the sequence number of this call of `tell` for the lane, from 0.
        words: the latest control words of the lane (integers in shared memory); None if they have not changed.
        frame: commands, or dispatched items.
        holds: whether the host must stop returning the worker's items, because the main process has no space for them.
    """

    number: int
    words: list[int] | None
    frame: list[Any]
    holds: bool


@dataclass(frozen=True)
class Pulled:
    """The result of a call of `pull`.

    Args:
        number: the sequence number of this call of `pull` for the lane, from 0.
        words: the latest control words of the lane (integers in shared memory); None if they have not changed.
        frame: the worker's messages without their large buffers, followed by these buffers; empty if there are no
            messages.
        has_ended: whether the worker has exited, and no more of its messages will be returned.
        exitcode: the exit code of the worker.
        seen: the current state of the worker; None if it was returned less than `SEEN` seconds ago.
        is_full: whether the main process must stop sending frames, because earlier frames do not fit into the link yet.
    """

    number: int
    words: list[int] | None
    frame: list[Any]
    has_ended: bool = False
    exitcode: int | None = None
    seen: Seen | None = None
    is_full: bool = False


def apart(frame: list[Any]) -> list[Any]:
    """Prepares a frame for Ray: large parts are stored outside the pickle, so that they are copied only once."""
    return [pickle.PickleBuffer(part) if len(part) >= APART else bytes(part) for part in frame]


def versions() -> dict[str, str]:
    """Returns the versions of software that must be equal on both machines of a link. Libraries that are not loaded are
    omitted."""
    found = {"Python": platform.python_version(), "torchdata-rs": torchdata.__version__}
    for name in ("numpy", "torch"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(module.__version__)
    return found


class _WorkerLane:
    """The worker's side of a pair of links to the main process. The main process's side is `_Lane` in `worker.py`.

    Args:
        inbound: the link from the worker.
        outbound: the link to the worker.
        bells: the integers in shared memory that wake processes on this machine.
        own: the index in `bells` of the integer that wakes this process.
    """

    def __init__(self, inbound: Link, outbound: Link, bells: BellBoard, own: int) -> None:
        self.carrier = Carrier(inbound, outbound, bells, own, WORKER)
        self._told, self._pulled = 0, 0
        self._early: dict[int, Told] = {}
        self._telling, self._pulling = threading.Lock(), threading.Lock()
        self._frames: SimpleQueue[list[Any] | None] = SimpleQueue()
        #: `_came` counts the bytes of received frames, and `_passed` counts the bytes that were passed to the worker.
        #: Each counter is written by a single thread.
        self._came, self._passed = 0, 0
        #: Whether the host must not return items of the worker, because the main process has no space for them.
        self.holds = False
        self._has_ended = False
        threading.Thread(target=self._pass_on, name="torchdata-commands", daemon=True).start()

    def tell(self, told: Told) -> None:
        with self._telling:
            self._early[told.number] = told
            while (earliest := self._early.pop(self._told, None)) is not None:
                self._told += 1
                self._hear(earliest)

    def _hear(self, told: Told) -> None:
        if told.words is not None:
            self.carrier.put_words(told.words)
        if told.frame:
            self._came += bytes_of(told.frame)
            self._frames.put(told.frame)
        if told.holds != self.holds:
            self.holds = told.holds
            self.carrier.ring()

    def _pass_on(self) -> None:
        """Passes received frames to the worker, and waits until they fit into the link. This method runs in a separate
        thread, so that `tell` does not wait for free space in the link.
        """
        while (frame := self._frames.get()) is not None:
            while not self.carrier.put(frame) and not self._has_ended:
                time.sleep(GLANCE)
            was_full = self._is_full
            self._passed += bytes_of(frame)
            if was_full and not self._is_full:
                self.carrier.ring()

    @property
    def _is_full(self) -> bool:
        return self._came - self._passed >= FULL

    def pull(self, most: int, look: Callable[[bool], Seen | None], exitcode: Callable[[], int | None]) -> Pulled:
        """Returns the messages of the worker, once there is at least one message.

        Args:
            most: if a frame has at least this many bytes, no further messages of the worker are added to it.
            look: a function that returns the worker's state, or None if no report is needed. Its argument is True for
                the last report.
            exitcode: a function that returns the exit code of the worker.
        """
        with self._pulling:
            if not self._has_ended:
                self.carrier.wait(PULSE, not self.holds, False)
            # The exit is checked before the frame is taken, because only after the exit does the link contain all
            # messages of the worker.
            has_ended = self._has_ended
            words, frame = self.carrier.take(0 if self.holds else most)
            self._pulled += 1
            has_ended &= not frame  # messages that are still in the link are lost in this case
            return Pulled(
                number=self._pulled - 1,
                words=words,
                frame=apart(frame),
                has_ended=has_ended,
                exitcode=exitcode() if has_ended else None,
                seen=look(has_ended),
                is_full=self._is_full,
            )

    def end(self) -> None:
        self._has_ended = True
        self._frames.put(None)
        self.carrier.ring()


class Host:
    """Runs one worker.

    Args:
        setup: the setup of the host.
        program: the pickled program of the worker.
    """

    def __init__(self, setup: RemoteSetup, program: bytes) -> None:
        bells = BellBoard(1 + DISPATCHER)
        budget = min(setup.budget, default_budget())
        control, data = Link(0, CONTROL_RING), Link(budget)
        #: For each lane, a pair: the link from the worker, and the link to the worker. On the lane of dispatched items,
        #: the worker sends no messages, but only control words.
        self._links = [(data, control)]
        dispatched = None
        if setup.dispatcher_page is not None:
            dispatched = Link(budget)
            self._links.append((Link(0, CONTROL_RING), dispatched))
        self._bells = bells
        self._stats = stats = StatsBoard(1 + DISPATCHER, 2, PIPES, setup.full_stats)
        stats.take_in(WORKER, setup.counts)
        self._seen_at = -SEEN
        shared = SharedPickle(program)
        child_setup = ChildSetup(
            name=setup.name,
            index=WORKER,
            page=WORKER,
            worker_id=setup.worker_id,
            number=setup.worker_id,
            num_workers=setup.num_workers,
            shards=range(setup.worker_id, setup.worker_id + 1),
            num_shards=setup.num_workers,
            dispatches=False,
            program=shared,
            program_class=setup.program_class,
            common=CommonSetup.under("spawn", bells),
            stats=Handle(stats),
            lines=Lines(Handle(control), [Handle(data)], None if dispatched is None else Handle(dispatched)),
            output_peers=[MAIN],
            dispatcher_index=DISPATCHER,
            dispatcher_page=setup.dispatcher_page or DISPATCHER,
            window=setup.window,
            cadence=setup.cadence,
        )
        self._child = new_child(get_context("spawn"), setup.name, run_child, (child_setup,))
        with without_main():
            start_all([self._child], "spawn")
        shared.close()
        bells.close_descriptor()
        for link in (link for pair in self._links for link in pair):
            link.close_descriptor()
        self._lanes: list[_WorkerLane] = []
        self._beginning, self._has_ended = threading.Lock(), False
        self._heard, self._parent = time.monotonic(), os.getppid()
        threading.Thread(target=self._watch, name="torchdata-host", daemon=True).start()

    def begin(self) -> About:
        """Waits until the worker has opened its control link, or has exited. Returns the description of the worker."""
        child, (_, control) = self._child, self._links[0]
        while not control.has_consumer() and not child.ended:
            time.sleep(GLANCE)
        with self._beginning:
            for own, (inbound, outbound) in zip((MAIN, DISPATCHER), self._links, strict=False):
                self._lanes.append(_WorkerLane(inbound, outbound, self._bells, own))
            if self._has_ended:
                self._end_lanes()
        importlib.import_module("numpy")  # imported so that its version is compared
        exitcode = child.exitcode if child.ended else None
        return About(child.pid or 0, os.getpid(), *_node(), exitcode, versions())

    def tell(self, lane: int, told: Told) -> None:
        """Passes a message of the main process to the worker.

        Args:
            lane: 0 for commands and items, 1 for dispatched items.
            told: the message from the main process.
        """
        self._heard = time.monotonic()
        self._lanes[lane].tell(told)

    def pull(self, lane: int, most: int) -> Pulled:
        """Returns the messages of the worker, once there is at least one message.

        Args:
            lane: see `tell`.
            most: if a frame has at least this many bytes, no further messages of the worker are added to it.
        """
        self._heard = time.monotonic()
        return self._lanes[lane].pull(most, self._look if lane == 0 else _look_away, lambda: self._child.exitcode)

    def _look(self, is_last: bool) -> Seen | None:
        """Returns the current state of the worker; None if it was returned less than `SEEN` seconds ago."""
        now = time.monotonic()
        if now - self._seen_at < SEEN and not is_last:
            return None
        self._seen_at = now
        from torchdata._observe.stats.processor import processor_times

        ran, stood, lived = processor_times(self._child.pid or 0) or (0.0, 0.0, 0.0)
        times = int(ran * 1e9), int(stood * 1e9), int(lived * 1e9)
        return Seen(self._stats.carry_out(WORKER), times, self._child.is_stopped)

    def stand(self, wakes: bool) -> tuple[str, str]:
        """Returns what the kernel reports about the worker's state, and the worker's Python stacks."""
        page = next((page for page in self._stats.read() if page["page"] == WORKER), None)
        return self._child.where_it_stands(page, wakes)

    def end(self) -> None:
        """Kills the worker, because a stopped worker would not notice the exit of this process."""
        self._child.kill()

    def _watch(self) -> None:
        """Records the worker's exit, and ends this process if the main process sends nothing for too long.

        If the parent of this process has exited, Ray's daemon on this machine has ended, and Ray kills the worker and
        this process. The exit code of a worker that Ray kills is not reported, because only Ray knows the reason.
        """
        child = self._child
        while not child.ended:
            if time.monotonic() - self._heard > DEAF:
                os._exit(1)
            with contextlib.suppress(OSError):
                connection.wait([child.sentinel()], LOOK)
        child.close()
        if os.getppid() != self._parent:
            os._exit(1)
        with self._beginning:
            self._has_ended = True
            self._end_lanes()

    def _end_lanes(self) -> None:
        for lane in self._lanes:
            lane.end()


def _look_away(is_last: bool) -> None:
    """Replaces `Host._look` on the lane of dispatched items, which sends no reports on the worker."""


def bytes_of(frame: list[Any]) -> int:
    return sum(memoryview(part).nbytes for part in frame)


def _node() -> tuple[str, str]:
    """Returns the machine's name with its address, and the address alone."""
    ray: Any = sys.modules.get("ray")
    name = socket.gethostname()
    if ray is None:
        return name, name
    address: str = ray.util.get_node_ip_address()
    return f"{name}, {address}", address
