"""The host of a worker on another machine: an actor of Ray's, beside the worker's own process.

Role: runs where Ray places it. The worker is a spawned process, as on main's machine: with the same links, but to this
process, so that user code has a main thread and a lock of its own, and can take nothing down but itself. The host
carries what goes over these links to main and back, undecoded. It has nothing of the user's, and ends its worker with
itself.

Two threads of the actor's work here: one takes what main tells (`tell`), one gives what the worker has sent (`pull`).
Main keeps some pulls waiting. All are numbered, as who calls an actor's threads is not promised their order.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from queue import SimpleQueue
from typing import Any

import torchdata
from torchdata._engine.processes.crossing import Handle, SharedPickle
from torchdata._engine.processes.start import new_child, start_all
from torchdata._engine.workers.child import MAIN, ChildSetup, CommonSetup, Lines, run_child
from torchdata._engine.workers.group import default_budget
from torchdata._engine.workers.members import CONTROL_RING
from torchdata._native import BellBoard, Carrier, Link, StatsBoard
from torchdata._observe.stats.counting import PIPES

__all__ = ["About", "Host", "Pulled", "RemoteSetup", "Seen", "apart", "versions"]

#: Seconds after which a pull returns though there is nothing: each side hears that the other one lives.
PULSE = 1.0
#: Seconds after which a host that hears nothing from main ends itself: Ray should have done so.
DEAF = 600.0
#: Seconds between two looks at that, and between two at whether there is room for a command, or whether a child is up.
LOOK, GLANCE = 5.0, 0.002
#: Seconds between two looks at what the worker has counted.
SEEN = 0.5
#: Bytes from which a part of a frame travels beside the pickle.
APART = 32 << 10
#: The worker's bell and page.
WORKER = 1


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
    """

    name: str
    worker_id: int
    num_workers: int
    program_class: tuple[str, str]
    cadence: tuple[float, float]
    budget: int
    full_stats: bool
    counts: bytes

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
            counts=setup.stats.shared.carry_out(setup.page),
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
class Pulled:
    """What a pull has brought.

    Args:
        number: the how manieth it is.
        words: the latest words; None: they are as before.
        frame: a head and large buffers; empty without units.
        has_ended: whether the worker has, and all has come that it had sent and that is not held back.
        exitcode: how.
        seen: the worker, if it is time for another look.
    """

    number: int
    words: list[int] | None
    frame: list[Any]
    has_ended: bool = False
    exitcode: int | None = None
    seen: Seen | None = None


def apart(frame: list[Any]) -> list[Any]:
    """A frame as Ray is to take it: large parts beside the pickle, so that they are copied once."""
    return [pickle.PickleBuffer(part) if len(part) >= APART else bytes(part) for part in frame]


def versions() -> dict[str, str]:
    """The versions of what must be the same on both sides of a link, as far as it is loaded or small."""
    found = {"Python": platform.python_version(), "torchdata-rs": torchdata.__version__}
    for name in ("numpy", "torch"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(module.__version__)
    return found


class Host:
    """Runs one worker.

    Args:
        setup: what it has to know.
        program: what the worker runs, pickled.
    """

    def __init__(self, setup: RemoteSetup, program: bytes) -> None:
        self._bells = bells = BellBoard(1 + WORKER)
        self._control = control = Link(0, CONTROL_RING)
        self._data = data = Link(min(setup.budget, default_budget()))
        self._stats = stats = StatsBoard(1 + WORKER, 2, PIPES, setup.full_stats)
        stats.take_in(WORKER, setup.counts)
        self._seen_at = -SEEN
        shared = SharedPickle(program)
        child_setup = ChildSetup(
            name=setup.name,
            index=WORKER,
            pages_behind=0,
            worker_id=setup.worker_id,
            num_workers=setup.num_workers,
            dispatches=False,
            program=shared,
            program_class=setup.program_class,
            common=CommonSetup.under("spawn", bells),
            stats=Handle(stats),
            lines=Lines(Handle(control), [Handle(data)], None),
            output_peers=[MAIN],
            dispatcher_index=1 + WORKER,
            window=0,
            cadence=setup.cadence,
        )
        self._child = new_child(get_context("spawn"), setup.name, run_child, (child_setup,))
        with _without_main():
            start_all([self._child], "spawn")
        shared.close()
        for one in (control, data, bells):
            one.close_descriptor()
        self._carrier: Carrier | None = None
        self._has_ended = False
        self._heard = time.monotonic()
        self._told, self._pulled = 0, 0
        self._early: dict[int, tuple[list[int] | None, list[Any], bool]] = {}
        self._telling, self._pulling = threading.Lock(), threading.Lock()
        self._commands: SimpleQueue[list[Any] | None] = SimpleQueue()
        #: Whether main has no room for units.
        self._holds = False
        threading.Thread(target=self._watch, name="torchdata-host", daemon=True).start()

    def begin(self) -> About:
        """Waits until the worker takes commands, or has ended; what it is."""
        child = self._child
        while not self._control.has_consumer() and not child.ended:
            time.sleep(GLANCE)
        self._carrier = Carrier(self._data, self._control, self._bells, MAIN, WORKER)
        threading.Thread(target=self._pass_on, name="torchdata-commands", daemon=True).start()
        importlib.import_module("numpy")  # to be compared
        exitcode = child.exitcode if child.ended else None
        return About(child.pid or 0, os.getpid(), *_node(), exitcode, versions())

    def tell(self, number: int, words: list[int] | None, frame: list[Any], holds: bool) -> None:
        """Passes main's words on to the worker, and commands as it has room for them.

        Args:
            number: the how manieth call it is, from 0.
            words: the latest words; None: they are as before.
            frame: commands.
            holds: whether units are to be held back, as main has no room for more.
        """
        self._heard = time.monotonic()
        with self._telling:
            self._early[number] = words, frame, holds
            while (earliest := self._early.pop(self._told, None)) is not None:
                self._told += 1
                self._hear(*earliest)

    def _hear(self, words: list[int] | None, frame: list[Any], holds: bool) -> None:
        assert self._carrier is not None
        if words is not None:
            self._carrier.put_words(words)
        if frame:
            self._commands.put(frame)
        if holds != self._holds:
            self._holds = holds
            self._carrier.ring()

    def _pass_on(self) -> None:
        """Gives the worker its commands. Nothing else waits until it has room for them."""
        assert self._carrier is not None
        while (frame := self._commands.get()) is not None:
            while not self._carrier.put(frame) and not self._has_ended:
                time.sleep(GLANCE)

    def pull(self, most: int) -> Pulled:
        """Gives what the worker has sent, as soon as there is anything.

        Args:
            most: bytes of a frame from which on no further unit is added.
        """
        self._heard = time.monotonic()
        assert self._carrier is not None
        with self._pulling:
            if not self._has_ended:
                self._carrier.wait(PULSE, not self._holds, False)
            has_ended = self._has_ended  # before the look: what it had sent by then is all
            words, frame = self._carrier.take(0 if self._holds else most)
            self._pulled += 1
            has_ended &= not frame  # units that are held back are lost with it: main may wait for its end
            exitcode = self._child.exitcode if has_ended else None
            return Pulled(self._pulled - 1, words, apart(frame), has_ended, exitcode, self._look(has_ended))

    def _look(self, is_last: bool) -> Seen | None:
        """The worker as it is now, if the last look is old enough."""
        now = time.monotonic()
        if now - self._seen_at < SEEN and not is_last:
            return None
        self._seen_at = now
        from torchdata._observe.stats.reading import times_of

        ran, stood, lived = times_of(self._child.pid or 0) or (0.0, 0.0, 0.0)
        times = int(ran * 1e9), int(stood * 1e9), int(lived * 1e9)
        return Seen(self._stats.carry_out(WORKER), times, self._child.is_stopped)

    def stand(self, wakes: bool) -> tuple[str, str]:
        """Where the worker stands: the kernel's word on it, and its Python stacks.

        Args:
            wakes: whether it is stopped, and may go on so that it can answer.
        """
        page = next((page for page in self._stats.read() if page["page"] == WORKER), None)
        return self._child.where_it_stands(page, wakes)

    def end(self) -> None:
        """Ends the worker at once: one that is stopped would not notice this process's end."""
        self._child.kill()

    def _watch(self) -> None:
        """Notes the worker's end, and ends this process when main is not heard any more."""
        child = self._child
        while not child.ended:
            if time.monotonic() - self._heard > DEAF:
                os._exit(1)
            with contextlib.suppress(OSError):
                connection.wait([child.sentinel()], LOOK)
        child.close()
        self._has_ended = True
        self._commands.put(None)
        if self._carrier is not None:
            self._carrier.ring()


def _node() -> tuple[str, str]:
    """The machine, by name and address, and its address alone."""
    ray: Any = sys.modules.get("ray")
    name = socket.gethostname()
    if ray is None:
        return name, name
    address: str = ray.util.get_node_ip_address()
    return f"{name}, {address}", address


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keeps a spawned process from importing this one's program, which is Ray's."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)
