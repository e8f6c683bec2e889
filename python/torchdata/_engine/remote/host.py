"""Runs a worker on another machine: a Ray actor, the host, starts the worker's process there.

The host spawns the worker as a separate process, because user code needs a main thread, and because a crash of user
code must not end the host. The host forwards the contents of the worker's links without decoding them.

A lane is a pair of links, one per direction. The main process calls `push` to send messages to the worker, and `pull`
to get messages of the worker. `push` and `pull` run in separate threads. Several calls of `pull` are always waiting at
the host, so that the host can return messages immediately. All calls of `push` and `pull` are numbered, because they
may arrive out of order. The first lane (pair of links) transmits commands and the worker's items. The second lane (pair
of links) transmits items from the dispatching process, which runs on the main process's machine.
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
from dataclasses import dataclass, field, replace
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

#: Seconds after which `pull` returns even without content, to show that the connection works.
PULSE = 1.0
#: Seconds without a message from the main process after which the host exits, because Ray may have failed to end the
#: host.
SILENCE_TIMEOUT = 600.0
#: Seconds between two checks: `POLL_INTERVAL` for the worker's exit, `SHORT_INTERVAL` for free space in a link and
#: for the start of a child.
POLL_INTERVAL, SHORT_INTERVAL = 5.0, 0.002
SEEN = 0.5
#: Parts of a message with at least `APART` bytes are sent outside the pickle.
APART = 32 << 10
#: Once `FULL` bytes wait for the worker, the main process must stop sending.
FULL = 8 << 20
#: The indices of the worker and of the dispatching process in the `BellBoard` and the `StatsBoard` of this machine.
WORKER, DISPATCHER = 1, 2


@dataclass(frozen=True)
class RemoteSetup:
    """The setup of a host.

    Args:
        child: the worker's setup, as if the worker ran on the main process's machine. The fields in `_HERE` are None,
            because they are valid on one machine only.
        budget: bytes of shared memory for the items that the worker sends.
        counts: the counters of the processes that this worker process replaces, directly or indirectly.
    """

    child: ChildSetup
    budget: int
    full_stats: bool
    counts: bytes
    is_dispatched: bool

    @classmethod
    def of(cls, setup: ChildSetup, budget: int) -> RemoteSetup:
        child, board = replace(setup, **_HERE), setup.stats.shared
        return cls(child, budget, board.full, board.carry_out(setup.page), setup.lines.dispatched is not None)


#: The fields of a child's setup that are valid on one machine only, each with the value None.
_HERE: dict[str, Any] = {"program": None, "common": None, "stats": None, "lines": None}


@dataclass(frozen=True)
class About:
    """Describes a worker that has started; `node` is the name and the address of the machine, and `host` is the process
    id of the host.
    """

    pid: int
    host: int
    node: str
    address: str
    exitcode: int | None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """`times` are durations in nanoseconds: running, waiting for a processor, and since the worker's start."""

    counts: bytes
    times: tuple[int, int, int]
    is_stopped: bool


@dataclass(frozen=True)
class Pushed:
    """A message from the main process to a host.

    Args:
        number: the number of this call of `push`, from 0 for each pair of links.
        words: the integers in the shared memory of the main process's links, such as the current epoch's number; None
            if all integers are unchanged.
        holds: whether the host must stop returning items, because the main process lacks space for further items.
    """

    number: int
    words: list[int] | None
    frame: list[Any]
    holds: bool


@dataclass(frozen=True)
class Pulled:
    """The result of `Host.pull`: messages of the worker, and its state.

    Args:
        number: the number of this call of `pull`, from 0 for each pair of links.
        has_ended: whether the worker has exited, and all its messages were returned.
        seen: the state of the worker; None if `pull` has returned the state less than `SEEN` seconds ago.
        is_full: whether the main process must stop sending messages, because the worker's link lacks space for further
            messages.
    """

    number: int
    words: list[int] | None
    frame: list[Any]
    has_ended: bool = False
    exitcode: int | None = None
    seen: Seen | None = None
    is_full: bool = False


def apart(frame: list[Any]) -> list[Any]:
    """Stores large parts of a message (`frame`) outside the pickle, so that Ray copies these parts only once."""
    return [pickle.PickleBuffer(part) if len(part) >= APART else bytes(part) for part in frame]


def versions() -> dict[str, str]:
    """Returns the versions of the software that must be equal on the main process's machine and on the host's
    machine."""
    found = {"Python": platform.python_version(), "torchdata-rs": torchdata.__version__}
    for name in ("numpy", "torch"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(module.__version__)
    return found


class _WorkerLane:
    """Transmits messages between the worker's links and the main process (`_Lane` in `worker.py`)."""

    def __init__(self, inbound: Link, outbound: Link, bells: BellBoard, own: int) -> None:
        self.carrier = Carrier(inbound, outbound, bells, own, WORKER)
        self._pushed, self._pulled = 0, 0
        self._early: dict[int, Pushed] = {}
        self._pushing, self._pulling = threading.Lock(), threading.Lock()
        self._frames: SimpleQueue[list[Any] | None] = SimpleQueue()
        #: The number of bytes in received messages, and the number of bytes that were passed to the worker.
        self._arrived, self._passed = 0, 0
        #: Whether the main process lacks space for more items.
        self.holds = False
        self._has_ended = False
        threading.Thread(target=self._pass_on, name="torchdata-commands", daemon=True).start()

    def push(self, pushed: Pushed) -> None:
        with self._pushing:
            self._early[pushed.number] = pushed
            while (earliest := self._early.pop(self._pushed, None)) is not None:
                self._pushed += 1
                self._receive(earliest)

    def _receive(self, pushed: Pushed) -> None:
        if pushed.words is not None:
            self.carrier.put_words(pushed.words)
        if pushed.frame:
            self._arrived += bytes_of(pushed.frame)
            self._frames.put(pushed.frame)
        if pushed.holds != self.holds:
            self.holds = pushed.holds
            self.carrier.ring()

    def _pass_on(self) -> None:
        """Writes received messages to the worker's link. This method runs in a separate thread, so that `push` does not
        wait for space in the link."""
        while (frame := self._frames.get()) is not None:
            while not self.carrier.put(frame) and not self._has_ended:
                time.sleep(SHORT_INTERVAL)
            was_full = self._is_full
            self._passed += bytes_of(frame)
            if was_full and not self._is_full:
                self.carrier.ring()

    @property
    def _is_full(self) -> bool:
        return self._arrived - self._passed >= FULL

    def pull(self, most: int, look: Callable[[bool], Seen | None], exitcode: Callable[[], int | None]) -> Pulled:
        """Returns the worker's messages, once there is at least one.

        Args:
            most: no further message is returned once the messages together have this many bytes.
            look: a function that returns the worker's state, or None if it returned the state less than `SEEN` seconds
                ago; after the worker's exit, `look(True)` always returns the state.
        """
        with self._pulling:
            if not self._has_ended:
                self.carrier.wait(PULSE, not self.holds, False)
            # The exit is checked before messages are taken, because a worker that exits in between may have sent
            # further messages.
            has_ended = self._has_ended
            words, frame = self.carrier.take(0 if self.holds else most)
            self._pulled += 1
            has_ended &= not frame
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
    def __init__(self, setup: RemoteSetup, program: bytes) -> None:
        bells = BellBoard(1 + DISPATCHER)
        budget = min(setup.budget, default_budget())
        control, data = Link(0, CONTROL_RING), Link(budget)
        #: For each lane, the link from the worker and the link to the worker. In the second lane (dispatched items),
        #: the worker sends nothing.
        self._links = [(data, control)]
        dispatched = None
        if setup.is_dispatched:
            dispatched = Link(budget)
            self._links.append((Link(0, CONTROL_RING), dispatched))
        self._bells = bells
        self._stats = stats = StatsBoard(1 + DISPATCHER, 2, PIPES, setup.full_stats)
        stats.take_in(WORKER, setup.counts)
        self._seen_at = -SEEN
        shared = SharedPickle(program)
        child_setup = replace(
            setup.child,
            index=WORKER,
            page=WORKER,
            program=shared,
            common=CommonSetup.under("spawn", bells),
            stats=Handle(stats),
            lines=Lines(Handle(control), [Handle(data)], None if dispatched is None else Handle(dispatched)),
            dispatcher_index=DISPATCHER,
        )
        self._child = new_child(get_context("spawn"), child_setup.name, run_child, (child_setup,))
        with without_main():
            start_all([self._child], "spawn")
        shared.close()
        bells.close_descriptor()
        for link in (link for pair in self._links for link in pair):
            link.close_descriptor()
        self._lanes: list[_WorkerLane] = []
        self._beginning, self._has_ended = threading.Lock(), False
        self._received, self._parent = time.monotonic(), os.getppid()
        threading.Thread(target=self._watch, name="torchdata-host", daemon=True).start()

    def begin(self) -> About:
        child, (_, control) = self._child, self._links[0]
        while not control.has_consumer() and not child.ended:
            time.sleep(SHORT_INTERVAL)
        with self._beginning:
            for own, (inbound, outbound) in zip((MAIN, DISPATCHER), self._links, strict=False):
                self._lanes.append(_WorkerLane(inbound, outbound, self._bells, own))
            if self._has_ended:
                self._end_lanes()
        importlib.import_module("numpy")  # `versions` lists only imported modules
        exitcode = child.exitcode if child.ended else None
        return About(child.pid or 0, os.getpid(), *_node(), exitcode, versions())

    def push(self, lane: int, pushed: Pushed) -> None:
        """Receives a message on the pair of links `lane`: 0 for commands and items, 1 for dispatched items."""
        self._received = time.monotonic()
        self._lanes[lane].push(pushed)

    def pull(self, lane: int, most: int) -> Pulled:
        self._received = time.monotonic()
        look = self._look if lane == 0 else lambda _: None  # the lane of dispatched items reports nothing on the worker
        return self._lanes[lane].pull(most, look, lambda: self._child.exitcode)

    def _look(self, is_last: bool) -> Seen | None:
        now = time.monotonic()
        if now - self._seen_at < SEEN and not is_last:
            return None
        self._seen_at = now
        from torchdata._observe.stats.processor import processor_times

        ran, queued, lived = processor_times(self._child.pid or 0) or (0.0, 0.0, 0.0)
        times = int(ran * 1e9), int(queued * 1e9), int(lived * 1e9)
        return Seen(self._stats.carry_out(WORKER), times, self._child.is_stopped)

    def current_frame(self, wakes: bool) -> tuple[str, str]:
        page = next((page for page in self._stats.read() if page["page"] == WORKER), None)
        return self._child.current_frame(page, wakes)

    def end(self) -> None:
        """Kills the worker when the host ends, because a suspended worker would not notice the end of the host."""
        self._child.kill()

    def _watch(self) -> None:
        """Waits until the worker exits. If Ray's daemon (the parent of this process) has exited, Ray has killed the
        worker, so the worker's exit code is not reported.
        """
        child = self._child
        while not child.ended:
            if time.monotonic() - self._received > SILENCE_TIMEOUT:
                os._exit(1)
            with contextlib.suppress(OSError):
                connection.wait([child.sentinel()], POLL_INTERVAL)
        child.close()
        if os.getppid() != self._parent:
            os._exit(1)
        with self._beginning:
            self._has_ended = True
            self._end_lanes()

    def _end_lanes(self) -> None:
        for lane in self._lanes:
            lane.end()


def bytes_of(frame: list[Any]) -> int:
    return sum(memoryview(part).nbytes for part in frame)


def _node() -> tuple[str, str]:
    ray: Any = sys.modules.get("ray")
    name = socket.gethostname()
    if ray is None:
        return name, name
    address: str = ray.util.get_node_ip_address()
    return f"{name}, {address}", address
