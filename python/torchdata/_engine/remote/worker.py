"""Lets the main process control a worker on another machine, through the same interface as a local `ChildProcess`.

A thread of the main process transmits messages between shared memory (`Link`) and the worker's host.

A worker that replaces another worker gets its own thread and links, so it receives no late messages of the old worker.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.remote.host import About, Pulled, Pushed, Seen, apart, bytes_of, versions
from torchdata._engine.workers.child import MAIN, ChildSetup
from torchdata._engine.workers.members import CONTROL_RING
from torchdata._handlers import raise_if_of_handler
from torchdata._native import Carrier, Link, OwnedDescriptor, StatsBoard
from torchdata._threads import Latch

#: The number of `pull` calls that wait at a host; with two calls, the host prepares one message while it sends another.
AHEAD = 2
#: The maximum size in bytes of one message to a host.
MOST_PUSHED = 1 << 20
#: This bit of a link's first shared integer asks the worker to stop.
#: The lower bits of this shared integer contain the number of the current epoch.
_END = 1 << 32
#: `POLL_INTERVAL`: seconds between two checks by a thread that waits for the host. `JOINED`: how long `close` waits for
#: the thread.
POLL_INTERVAL, JOINED = 1.0, 5.0
#: The time limits in seconds for a host to report its worker's stack (`ANSWERED`), and to kill the worker (`ENDED`).
ANSWERED, ENDED = 10.0, 1.0

#: Workers get unique numbers, because process ids of different machines may be equal.
_numbers = itertools.count(1)


class VersionsDiffer(RuntimeError):
    """Raised if the versions on the worker's machine differ from the versions of the main process."""


class RemoteWorker(ChildProcess):
    """Represents a worker on another machine in the main process. `hosts` is the `Cluster` that starts the worker's
    host. `setup` describes the worker as if it ran on the main process's machine."""

    def __init__(self, hosts: Any, name: str, setup: ChildSetup) -> None:
        super().__init__(name, name)
        self._hosts, self._setup = hosts, setup
        self._wake = Latch()
        self._is_killed = False
        self._thread: threading.Thread | None = None
        self._actor: Any = None
        self._carriers: list[Carrier] = []
        self.about: About | None = None
        self._seen: Seen | None = None
        self._fault: Exception | None = None
        ends = os.pipe()
        #: The ends of a pipe. When the worker exits, a byte is written to the pipe, so that code that waits for the
        #: exit wakes up.
        self._ending, self._sign = (OwnedDescriptor(end) for end in reversed(ends))

    def _launch(self) -> int:
        self._actor = self._hosts.host(self._setup)
        self._thread = threading.Thread(target=self._run, name=f"torchdata-{self.name}", daemon=True)
        self._thread.start()
        return next(_numbers)

    def watch(self) -> None:
        """Does nothing, because a thread of this object already waits for the worker's exit."""

    def _look(self, pid: int) -> None:
        pass  # the worker's thread records the exit

    def sentinel(self) -> int:
        return self._sign.fileno()

    @property
    def sign(self) -> OwnedDescriptor:
        return self._sign

    @property
    def called(self) -> str:
        actor = "no actor" if self._actor is None else f"Ray actor {self._actor.identity}"
        if self.about is None:
            return f"{self.name} ({actor}, not started yet)"
        return f"{self.name} (pid {self.about.pid} on {self.about.node}, {actor})"

    @property
    def is_up(self) -> bool:
        return self.about is not None

    def has_page(self, page: dict[str, Any]) -> bool:
        return self.about is not None and page["pid"] == self.about.pid and self._seen is not None

    @property
    def is_stopped(self) -> bool:
        return self._seen is not None and self._seen.is_stopped

    @property
    def is_running(self) -> bool:
        """Returns False, because the host does not report whether a thread of the worker currently runs."""
        return False

    def worked(self, page: dict[str, Any] | None) -> float | None:
        if page is None or not self.has_page(page):
            return None
        return float(page["ran"] + page["queued"]) / 1e9

    def current_frame(self, page: dict[str, Any] | None, wakes: bool = False) -> tuple[str, str]:
        actor = self._actor
        try:
            if actor is None or self.about is None:
                return "not started yet", "It has no stack yet."
            where, stack = actor.current_frame(wakes).result(ANSWERED)
            return where, stack
        except Exception as error:  # Ray may raise any error if a host does not answer
            raise_if_of_handler(error)
            return "in an unknown state", f"Its host reports no stack: {self._hosts.why(error)}."

    def kill(self) -> None:
        self._is_killed = True
        self._ring()

    def close(self) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOINED)
        self._ending.close()
        self._sign.close()

    def _ring(self) -> None:
        self._wake.set()
        for carrier in self._carriers:
            carrier.ring()

    def _run(self) -> None:
        actor = self._actor
        assert actor is not None
        try:
            self._carry(actor)
        except BaseException as error:
            self.exit_reason = self._hosts.why(error)
        if self._is_killed and self.about is not None:
            with contextlib.suppress(Exception):
                actor.end().result(ENDED)
        with contextlib.suppress(Exception):
            actor.kill()
        if self.about is not None:
            self._board.set_exited(self._setup.page)
        self._has_ended = True
        self._ring()
        with contextlib.suppress(OSError):
            os.write(self._ending.fileno(), b"\0")

    def _carry(self, actor: Any) -> None:
        about = self._await(actor.begin())
        if about is None:
            return
        self.about, self.exitcode = about, about.exitcode
        if about.exitcode is not None:
            return
        differences = _differences(about.versions)
        if differences:
            raise VersionsDiffer(differences)
        self._board.set_machine(self._setup.page, f"{about.address} {actor.identity}")
        setup, lines = self._setup, self._setup.lines
        bells, most = setup.common.bells.shared, self._hosts.chunk_bytes
        (output,) = lines.outputs
        carrier = Carrier(lines.control.shared, output.shared, bells, setup.index, MAIN)
        self._carriers.append(carrier)
        lane = _Lane(0, actor, carrier, most, lambda: not self._is_killed)
        if lines.dispatched is not None:
            # A `Carrier` needs a link in each direction. The link `nothing` stays unused, because a worker sends
            # nothing to the dispatching process.
            nothing, dispatched = Link(0, CONTROL_RING), lines.dispatched.shared
            from_dispatching = Carrier(dispatched, nothing, bells, setup.index, setup.dispatcher_index)
            self._carriers.append(from_dispatching)
            threading.Thread(
                target=self._carry_dispatched,
                args=(_Lane(1, actor, from_dispatching, most, lambda: not (self._is_killed or self._has_ended)),),
                name=f"torchdata-dispatched-{self.name}",
                daemon=True,
            ).start()
        for one in lane.carry():
            self._note(one)
            if one.has_ended:  # messages that did not fit into the link are dropped
                self.exitcode = one.exitcode
                return
        if self._fault is not None:
            raise self._fault

    def _carry_dispatched(self, lane: _Lane) -> None:
        try:
            for one in lane.carry():
                if one.has_ended:
                    return
        except Exception as error:
            # The exit of the host is not reported here, because the thread that runs `_run` reports it.
            if not isinstance(error, ConnectionError) and not self._hosts.is_of_host(error):
                self._fault = error
                self.kill()

    def _note(self, one: Pulled) -> None:
        page = self._setup.page
        if one.frame:
            self._board.count_carried(page, bytes_of(one.frame))
        if one.seen is not None:
            self._board.receive(page, one.seen.counts, one.seen.times)
            self._seen = one.seen

    @property
    def _board(self) -> StatsBoard:
        return self._setup.stats.shared

    def _await(self, begun: Future[About]) -> About | None:
        """Returns None if the worker was killed before its start was complete."""
        wake = self._wake
        # The callback refers to `wake` and not to `self`, because Ray may keep the callback forever.
        begun.add_done_callback(lambda _: wake.set())
        while not self._is_killed:
            if begun.done():
                return begun.result()
            self._wake.wait(POLL_INTERVAL)
        return None


class _Lane:
    """Transmits messages between two links in the main process (one per direction) and the worker's host.

    Args:
        number: the number of the pair of links: 0 for commands and items, 1 for dispatched items.
        most: no further items are added to a message once the message has this many bytes.
    """

    def __init__(self, number: int, actor: Any, carrier: Carrier, most: int, is_open: Callable[[], bool]) -> None:
        self._number, self._actor, self._carrier = number, actor, carrier
        self._most, self._is_open = most, is_open

    def ring(self) -> None:
        self._carrier.ring()

    def carry(self) -> Iterator[Pulled]:
        """Calls the host's `pull` repeatedly, and yields each result. A result's messages wait in an `_Arrived` until
        the main process's link has space."""
        actor, carrier, number = self._actor, self._carrier, self._number
        pulls: list[Future[Pulled]] = []
        early: dict[int, Pulled] = {}
        arrived = _Arrived(carrier, self._most)
        pushed = pulled = 0
        holds = is_full = False
        ring = _ringing(self)
        while self._is_open():
            actor.check()
            arrived.put()
            words, messages = carrier.take(0 if is_full else MOST_PUSHED)
            if words is not None and words[0] & _END:
                arrived.end()
            if words is not None or messages or holds != arrived.must_hold:
                holds = arrived.must_hold
                actor.push(number, Pushed(pushed, words, apart(messages), holds))
                pushed += 1
            while len(pulls) < AHEAD:
                pull = actor.pull(number, self._most)
                pulls.append(pull)
                pull.add_done_callback(ring)
            # The host may execute calls of `pull` in a different order from that of the requests, so results are
            # reordered by their numbers.
            for pull in [pull for pull in pulls if pull.done()]:
                pulls.remove(pull)
                brought = pull.result()
                early[brought.number] = brought
            one = early.pop(pulled, None)
            if one is None:
                carrier.wait(POLL_INTERVAL, not is_full, bool(arrived))
                continue
            pulled += 1
            is_full = one.is_full
            if one.words is not None:
                carrier.put_words(one.words)
            arrived.add(one.frame)
            if one.has_ended:
                arrived.put()
            yield one


class _Arrived:
    """Received messages that wait for space in the main process's link.

    Once `limit` bytes are waiting, the host must stop sending.
    """

    def __init__(self, carrier: Carrier, limit: int) -> None:
        self._carrier, self._limit = carrier, limit
        self._frames: deque[list[Any]] = deque()
        self._bytes = 0
        self._has_ended = False

    def __bool__(self) -> bool:
        return bool(self._frames)

    @property
    def must_hold(self) -> bool:
        return self._bytes >= self._limit

    def add(self, frame: list[Any]) -> None:
        if frame and not self._has_ended:
            self._frames.append(frame)
            self._bytes += bytes_of(frame)

    def put(self) -> None:
        while self._frames and self._carrier.put(self._frames[0]):
            self._bytes -= bytes_of(self._frames.popleft())

    def end(self) -> None:
        """Drops the received messages, and ignores later messages, because the main process has stopped reading the
        link."""
        self._has_ended = True
        self._frames.clear()
        self._bytes = 0


def _ringing(lane: _Lane) -> Callable[[object], None]:
    """Returns a callback that calls `lane.ring()`. The callback refers to the lane only weakly, because Ray keeps the
    callbacks of calls that never return."""
    found = weakref.ref(lane)

    def ring(_: object) -> None:
        lane = found()
        if lane is not None:
            lane.ring()

    return ring


def _differences(theirs: dict[str, str]) -> str:
    ours = versions()
    pairs = [(name, ours[name], theirs[name]) for name in ours if name in theirs]
    differ = [
        f"{name} is {here} here and {there} there"
        for name, here, there in pairs
        if _release(name, here) != _release(name, there)
    ]
    return f"the versions differ: {'; '.join(differ)}" if differ else ""


def _release(name: str, version: str) -> Any:
    """Returns the part of a version that must be equal on both machines: the whole version of this package, and the
    major and minor version of other modules.
    """
    return version if name == "torchdata-rs" else version.split(".")[:2]
