"""The host of a worker on another machine: an actor of Ray's, next to the worker's own process.

Role: runs where Ray places it. The worker is a spawned process, as on main's machine: with the same links, but to this
process, so that user code has a main thread and a lock of its own, and can take nothing down but itself. The host
carries what goes over these links to the main process and back, undecoded. It has nothing of the user, and ends its
worker with itself.

Two threads of the actor serve each lane: one receives messages of the main process (`tell`), and one returns what the
worker has sent (`pull`). The main process keeps some pulls waiting. All are numbered, as who calls an actor's threads
is not
promised their order. There is a lane for commands and items, and another one for what the dispatching process sends
from main's machine.
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

__all__ = ["About", "Host", "Pulled", "RemoteSetup", "Seen", "Told", "apart", "bytes_of", "versions"]

#: Seconds after which a pull returns without content, so that each side knows that the other one is alive.
PULSE = 1.0
#: Seconds after which a host that hears nothing from the main process ends itself: Ray should have done so.
DEAF = 600.0
#: Seconds between two looks at that, and between two at whether there is room for a command, or whether a child is up.
LOOK, GLANCE = 5.0, 0.002
#: Seconds between two looks at what the worker has counted.
SEEN = 0.5
#: Bytes from which a part of a frame travels next to the pickle.
APART = 32 << 10
#: Bytes that wait for room at the worker, from which on the main process is to hold others back.
FULL = 8 << 20
#: The worker's bell and page, and those that represent the dispatching process on the machine of the main process.
WORKER, DISPATCHER = 1, 2


@dataclass(frozen=True)
class RemoteSetup:
    """What a host has to know of its worker.

    Args:
        name: what the worker is called in messages.
        worker_id: its number.
        num_workers: how many workers there are.
        program_class: module and name of the program's class.
        cadence: how often it takes snapshots.
        budget: bytes of shared memory for what it sends.
        full_stats: whether the time of each pipe is taken.
        counts: what others in its place have counted before it.
        dispatcher_page: the page of the dispatching process in the main process; None where none sends to it.
        window: items that the dispatching process may be ahead.
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
        """That of a worker which would be set up so on main's machine."""
        return cls(
            name=setup.name,
            worker_id=setup.worker_id,
            num_workers=setup.num_workers,
            program_class=setup.program_class,
            cadence=setup.cadence,
            budget=budget,
            full_stats=setup.stats.shared.full,
            counts=setup.stats.shared.carry_out(setup.index),
            dispatcher_page=None if setup.lines.dispatched is None else setup.dispatcher_page,
            window=setup.window,
        )


@dataclass(frozen=True)
class About:
    """A worker that is up, or has failed to come up.

    Args:
        pid: its process number there.
        host: that of its host.
        node: the name and address of the machine.
        address: its address alone.
        exitcode: how it has ended; None while it runs.
        versions: of Python and of libraries, by name.
    """

    pid: int
    host: int
    node: str
    address: str
    exitcode: int | None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """A worker, as seen from its host.

    Args:
        counts: what it has counted.
        times: nanoseconds that its threads ran, that they were ready to and did not, and that it has lived.
        is_stopped: whether it is stopped, by a signal or a debugger.
    """

    counts: bytes
    times: tuple[int, int, int]
    is_stopped: bool


@dataclass(frozen=True)
class Told:
    """What main tells a host.

    Args:
        number: the how manieth call of its lane it is, from 0.
        words: the latest words; None: they are as before.
        frame: commands, or what is dispatched.
        holds: whether units are to be held back, as the main process has no room for more.
    """

    number: int
    words: list[int] | None
    frame: list[Any]
    holds: bool


@dataclass(frozen=True)
class Pulled:
    """What a pull has brought.

    Args:
        number: the how manieth it is.
        words: the latest words; None: they are as before.
        frame: a head and large buffers; empty without units.
        has_ended: whether the worker has, and all has come that it had sent and that is not held back.
        exitcode: how.
        seen: the worker, if it is time for another look.
        is_full: whether the main process is to hold units back, as what it has told waits for room.
    """

    number: int
    words: list[int] | None
    frame: list[Any]
    has_ended: bool = False
    exitcode: int | None = None
    seen: Seen | None = None
    is_full: bool = False


def apart(frame: list[Any]) -> list[Any]:
    """A frame as Ray is to take it: large parts next to the pickle, so that they are copied once."""
    return [pickle.PickleBuffer(part) if len(part) >= APART else bytes(part) for part in frame]


def versions() -> dict[str, str]:
    """The versions of what must be the same on both sides of a link, as far as it is loaded or small."""
    found = {"Python": platform.python_version(), "torchdata-rs": torchdata.__version__}
    for name in ("numpy", "torch"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(module.__version__)
    return found


class _Lane:
    """A pair of links between main and the worker, of which this is the side next to the worker.

    Args:
        inbound: what the worker sends.
        outbound: what is sent to it.
        bells: the bells here.
        own: this side's bell.
    """

    def __init__(self, inbound: Link, outbound: Link, bells: BellBoard, own: int) -> None:
        self.carrier = Carrier(inbound, outbound, bells, own, WORKER)
        self._told, self._pulled = 0, 0
        self._early: dict[int, Told] = {}
        self._telling, self._pulling = threading.Lock(), threading.Lock()
        self._frames: SimpleQueue[list[Any] | None] = SimpleQueue()
        #: Bytes of these; put by one thread and taken by another.
        self._came, self._passed = 0, 0
        #: Whether main has no room for units.
        self.holds = False
        self._has_ended = False
        threading.Thread(target=self._pass_on, name="torchdata-commands", daemon=True).start()

    def tell(self, told: Told) -> None:
        """See `Host.tell`."""
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
        """Gives the worker what has come. Nothing else waits until it has room for that."""
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
        """Gives what the worker has sent, as soon as there is anything.

        Args:
            most: bytes of a frame from which on no further unit is added.
            look: has a look at the worker, which may be the last one.
            exitcode: how it has ended.
        """
        with self._pulling:
            if not self._has_ended:
                self.carrier.wait(PULSE, not self.holds, False)
            has_ended = self._has_ended  # before the look: what it had sent by then is all
            words, frame = self.carrier.take(0 if self.holds else most)
            self._pulled += 1
            has_ended &= not frame  # units that are held back are lost with it: main may wait for its end
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
        """Notes the worker's end."""
        self._has_ended = True
        self._frames.put(None)
        self.carrier.ring()


class Host:
    """Runs one worker.

    Args:
        setup: what it has to know.
        program: what the worker runs, pickled.
    """

    def __init__(self, setup: RemoteSetup, program: bytes) -> None:
        bells = BellBoard(1 + DISPATCHER)
        budget = min(setup.budget, default_budget())
        control, data = Link(0, CONTROL_RING), Link(budget)
        #: By lane: a link for units from the worker, and one for units to it. Nothing is sent back of what is
        #: dispatched, but words.
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
            worker_id=setup.worker_id,
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
        self._lanes: list[_Lane] = []
        self._beginning, self._has_ended = threading.Lock(), False
        self._heard = time.monotonic()
        threading.Thread(target=self._watch, name="torchdata-host", daemon=True).start()

    def begin(self) -> About:
        """Waits until the worker takes commands, or has ended; what it is."""
        child, (_, control) = self._child, self._links[0]
        while not control.has_consumer() and not child.ended:
            time.sleep(GLANCE)
        with self._beginning:
            for own, (inbound, outbound) in zip((MAIN, DISPATCHER), self._links, strict=False):
                self._lanes.append(_Lane(inbound, outbound, self._bells, own))
            if self._has_ended:
                self._end_lanes()
        importlib.import_module("numpy")  # to be compared
        exitcode = child.exitcode if child.ended else None
        return About(child.pid or 0, os.getpid(), *_node(), exitcode, versions())

    def tell(self, lane: int, told: Told) -> None:
        """Passes main's words on to the worker, and units as it has room for them.

        Args:
            lane: 0 for commands and what the worker sends, 1 for what is dispatched to it.
            told: the message of the main process.
        """
        self._heard = time.monotonic()
        self._lanes[lane].tell(told)

    def pull(self, lane: int, most: int) -> Pulled:
        """Gives what the worker has sent, as soon as there is anything.

        Args:
            lane: see `tell`.
            most: bytes of a frame from which on no further unit is added.
        """
        self._heard = time.monotonic()
        return self._lanes[lane].pull(most, self._look if lane == 0 else _look_away, lambda: self._child.exitcode)

    def _look(self, is_last: bool) -> Seen | None:
        """The worker as it is now, if the last look is old enough."""
        now = time.monotonic()
        if now - self._seen_at < SEEN and not is_last:
            return None
        self._seen_at = now
        from torchdata._observe.stats.processor import processor_times

        ran, stood, lived = processor_times(self._child.pid or 0) or (0.0, 0.0, 0.0)
        times = int(ran * 1e9), int(stood * 1e9), int(lived * 1e9)
        return Seen(self._stats.carry_out(WORKER), times, self._child.is_stopped)

    def stand(self, wakes: bool) -> tuple[str, str]:
        """Where the worker stands: the kernel's word on it, and its Python stacks.

        Args:
            wakes: whether it is stopped, and may continue so that it can answer.
        """
        page = next((page for page in self._stats.read() if page["page"] == WORKER), None)
        return self._child.where_it_stands(page, wakes)

    def end(self) -> None:
        """Ends the worker at once: one that is stopped would not notice this process's end."""
        self._child.kill()

    def _watch(self) -> None:
        """Notes the worker's end, and ends this process when the main process is not heard any more."""
        child = self._child
        while not child.ended:
            if time.monotonic() - self._heard > DEAF:
                os._exit(1)
            with contextlib.suppress(OSError):
                connection.wait([child.sentinel()], LOOK)
        child.close()
        with self._beginning:
            self._has_ended = True
            self._end_lanes()

    def _end_lanes(self) -> None:
        for lane in self._lanes:
            lane.end()


def _look_away(is_last: bool) -> None:
    """No look at the worker."""


def bytes_of(frame: list[Any]) -> int:
    """The bytes of a frame."""
    return sum(memoryview(part).nbytes for part in frame)


def _node() -> tuple[str, str]:
    """The machine, by name and address, and its address alone."""
    ray: Any = sys.modules.get("ray")
    name = socket.gethostname()
    if ray is None:
        return name, name
    address: str = ray.util.get_node_ip_address()
    return f"{name}, {address}", address
