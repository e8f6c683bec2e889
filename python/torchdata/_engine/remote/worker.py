"""Main's side of a worker on another machine: what `ChildProcess` is to one on this machine.

Role: runs in main. The worker has the links that any child has, of which the main process has the usual ends. The other
ends are a carrier's: a thread of this module takes commands and words out of them and tells the worker's host, and puts
into them what it pulls from there. So main's collector, commands, leases and states see a child like any other. Another
thread carries what the dispatching process sends, if there is one, which runs on this machine.

Everything from a host passes its own worker's thread and links, so units of an earlier worker cannot reach its
replacement.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol

from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.remote.host import About, Pulled, Seen, Told, apart, bytes_of, versions
from torchdata._engine.workers.child import MAIN, ChildSetup
from torchdata._engine.workers.members import CONTROL_RING
from torchdata._native import Carrier, Link, OwnedDescriptor, StatsBoard
from torchdata._threads import Flag

__all__ = ["Actor", "Hosts", "RemoteWorker", "VersionsDiffer"]

#: Pulls that wait at a host, so that it makes a frame while another one is on its way.
AHEAD = 2
#: Bytes of one message with commands.
TOLD = 1 << 20
#: Set in the order of the end, which is beyond all epochs; the bits below tell those.
_END = 1 << 32
#: Seconds after which a wait looks around by itself, and for which an end waits for the thread.
LOOK, JOINED = 1.0, 5.0
#: Seconds within which a host reports its worker's stack, and ends the worker.
ANSWERED, ENDED = 10.0, 1.0

#: Seconds after which the main process warns that a worker is not up, and again each time that it was twice as long.
LATE = 10.0

#: Each worker's own number: process numbers of other machines may repeat.
_numbers = itertools.count(1)


class Actor(Protocol):
    """A host somewhere, as the main process calls it. Each call returns at once, and its future may hold Ray's
    error."""

    def check(self) -> None:
        """Raises where nobody can be called any more."""

    def begin(self) -> Future[About]: ...

    def tell(self, lane: int, told: Told) -> None: ...

    def pull(self, lane: int, most: int) -> Future[Pulled]: ...

    def stand(self, wakes: bool) -> Future[tuple[str, str]]: ...

    def end(self) -> Future[None]: ...

    def kill(self) -> None: ...

    @property
    def identity(self) -> str: ...


class Hosts(Protocol):
    """Who makes hosts. It replaces multiprocessing's context."""

    #: Bytes of a frame from which on no further unit is added.
    chunk_bytes: int

    def host(self, setup: ChildSetup) -> Actor:
        """Asks for a host, and does not wait for it."""

    def tell_late(self, seconds: float) -> None:
        """Warns that a host is not up after this many seconds."""

    def why(self, error: BaseException) -> str:
        """What an error of an actor's call says of its end."""

    def is_of_host(self, error: BaseException) -> bool:
        """Whether an error of an actor's call means that the host is gone."""


class VersionsDiffer(RuntimeError):
    """The worker would run under other versions than main."""


class RemoteWorker(ChildProcess):
    """A worker on another machine.

    Args:
        hosts: who makes its host.
        name: what the worker is called in messages.
        setup: what a child here would be set up with.
    """

    def __init__(self, hosts: Hosts, name: str, setup: ChildSetup) -> None:
        super().__init__(name, name)
        self._hosts, self._setup = hosts, setup
        self._wake = Flag()
        self._is_killed = False
        self._thread: threading.Thread | None = None
        self._actor: Actor | None = None
        #: What its threads carry by.
        self._carriers: list[Carrier] = []
        #: What it is, once it is up.
        self.about: About | None = None
        self._seen: Seen | None = None
        #: What went wrong with what is dispatched.
        self._fault: Exception | None = None
        ends = os.pipe()
        #: Its end is written into one; who watches it has copies of the other.
        self._ending, self._sign = (OwnedDescriptor(end) for end in reversed(ends))

    def _launch(self) -> int:
        self._actor = self._hosts.host(self._setup)
        self._thread = threading.Thread(target=self._run, name=f"torchdata-{self.name}", daemon=True)
        self._thread.start()
        return next(_numbers)

    # -- its life, as the main process sees it -----------------------------------------------------------------

    def watch(self) -> None:
        """Does nothing: it is watched since it was made."""

    def _look(self, pid: int) -> None:
        pass  # its thread says so

    def sentinel(self) -> int:
        """A descriptor that becomes readable when it ends."""
        return self._sign.fileno()

    @property
    def sign(self) -> OwnedDescriptor:
        """The same, for a reader of links."""
        return self._sign

    @property
    def called(self) -> str:
        """Its name, and where it is."""
        actor = "no actor" if self._actor is None else f"Ray actor {self._actor.identity}"
        if self.about is None:
            return f"{self.name} ({actor}, not up yet)"
        return f"{self.name} (pid {self.about.pid} on {self.about.node}, {actor})"

    @property
    def is_late(self) -> bool:
        """Whether it was asked for, and is not up."""
        return self._actor is not None and self.about is None and not self._has_ended

    @property
    def is_up(self) -> bool:
        """Whether Ray has found room for it, and its process takes commands."""
        return self.about is not None

    def has_page(self, page: dict[str, Any]) -> bool:
        """Whether the counters of a page are those of its process."""
        return self.about is not None and page["pid"] == self.about.pid and self._seen is not None

    @property
    def is_stopped(self) -> bool:
        """Whether its process was stopped when its host looked last."""
        return self._seen is not None and self._seen.is_stopped

    @property
    def is_running(self) -> bool:
        """False, because its host reports processor time, but not the present state."""
        return False

    def worked(self, page: dict[str, Any] | None) -> float | None:
        """Seconds that its threads had run, or had waited for a processor, when its host looked last."""
        if page is None or not self.has_page(page):
            return None
        return float(page["ran"] + page["stood"]) / 1e9

    def where_it_stands(self, page: dict[str, Any] | None, wakes: bool = False) -> tuple[str, str]:
        """The host's answer about the stack of its process."""
        actor = self._actor
        try:
            if actor is None or self.about is None:
                return "not up yet", "It has no stack."
            return actor.stand(wakes).result(ANSWERED)
        except Exception as error:  # whatever Ray says of a host that does not answer
            return "not to be asked", f"Its host tells no stack: {self._hosts.why(error)}."

    def kill(self) -> None:
        """Ends it at once."""
        self._is_killed = True
        self._ring()

    def close(self) -> None:
        """Gives its descriptors back, once it has ended."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOINED)
        self._ending.close()
        self._sign.close()

    def _ring(self) -> None:
        self._wake.set()
        for carrier in self._carriers:
            carrier.ring()

    # -- its thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        actor = self._actor
        assert actor is not None
        try:
            self._carry(actor)
        except BaseException as error:
            self.told = self._hosts.why(error)
        if self._is_killed and self.about is not None:
            with contextlib.suppress(Exception):
                actor.end().result(ENDED)
        with contextlib.suppress(Exception):
            actor.kill()
        if self.about is not None:
            self._board.set_gone(self._setup.index)
        self._has_ended = True
        self._ring()
        with contextlib.suppress(OSError):
            os.write(self._ending.fileno(), b"\0")

    def _carry(self, actor: Actor) -> None:
        """Carries until the worker has ended."""
        about = self._await(actor.begin())
        if about is None:
            return
        self.about, self.exitcode = about, about.exitcode
        if about.exitcode is not None:
            return
        differences = _differences(about.versions)
        if differences:
            raise VersionsDiffer(differences)
        self._board.set_place(self._setup.index, f"{about.address} {actor.identity}")
        setup, lines = self._setup, self._setup.lines
        bells, most = setup.common.bells.shared, self._hosts.chunk_bytes
        (output,) = lines.outputs  # a worker there runs one shard
        carrier = Carrier(lines.control.shared, output.shared, bells, setup.index, MAIN)
        self._carriers.append(carrier)
        lane = _Lane(0, actor, carrier, most, lambda: not self._is_killed)
        if lines.dispatched is not None:
            # Nothing is sent to the dispatching process but words.
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
            if one.has_ended:  # frames without room are lost, like what a exited worker had not put into its ring
                self.exitcode = one.exitcode
                return
        if self._fault is not None:
            raise self._fault

    def _carry_dispatched(self, lane: _Lane) -> None:
        """Carries what is dispatched, in a thread of its own, until the worker has ended."""
        try:
            for one in lane.carry():
                if one.has_ended:
                    return
        except Exception as error:
            # The other lane, which notices it too, reports that the host is gone.
            if not isinstance(error, ConnectionError) and not self._hosts.is_of_host(error):
                self._fault = error
                self.kill()

    def _note(self, one: Pulled) -> None:
        """Shows what its host has seen of it, and counts what has come over the network."""
        page = self._setup.index
        if one.frame:
            came = bytes_of(one.frame)
            self._board.count_frame(page, came, came >= self._hosts.chunk_bytes)
        if one.seen is not None:
            self._board.hear(page, one.seen.counts, one.seen.times)
            self._seen = one.seen

    @property
    def _board(self) -> StatsBoard:
        return self._setup.stats.shared

    def _await(self, begun: Future[About]) -> About | None:
        """Waits until the worker is up; None if it was killed before."""
        wake = self._wake
        begun.add_done_callback(lambda _: wake.set())  # Ray may keep that for ever, and so no more than it needs
        began, patience = time.monotonic(), LATE
        while not self._is_killed:
            if begun.done():
                return begun.result()
            self._wake.wait(min(LOOK, patience))
            if time.monotonic() - began >= patience and not begun.done():
                self._hosts.tell_late(time.monotonic() - began)
                patience *= 2
        return None


class _Lane:
    """A pair of links between main and a worker, of which this is main's side; see `torchdata._engine.remote.host`.

    Args:
        number: which one.
        actor: the host.
        carrier: moves units from one link to the other.
        most: bytes of a frame from which on no further unit is added.
        goes_on: whether anybody wants it carried.
    """

    def __init__(
        self,
        number: int,
        actor: Actor,
        carrier: Carrier,
        most: int,
        goes_on: Callable[[], bool],
    ) -> None:
        self._number, self._actor, self._carrier = number, actor, carrier
        self._most, self._goes_on = most, goes_on

    def ring(self) -> None:
        """Lets it look around."""
        self._carrier.ring()

    def carry(self) -> Iterator[Pulled]:
        """Carries, and gives each pull that has come, after its words were shown and before its frame was put."""
        actor, carrier, number = self._actor, self._carrier, self._number
        pulls: list[Future[Pulled]] = []
        early: dict[int, Pulled] = {}
        arrived = _Arrived(carrier, self._most)
        told = pulled = 0
        holds = is_full = False
        ring = _ringing(self)
        while self._goes_on():
            actor.check()
            arrived.put()
            words, units = carrier.take(0 if is_full else TOLD)
            if words is not None and words[0] & _END:
                arrived.end()
            if words is not None or units or holds != arrived.is_much:
                holds = arrived.is_much
                actor.tell(number, Told(told, words, apart(units), holds))
                told += 1
            while len(pulls) < AHEAD:
                pull = actor.pull(number, self._most)
                pulls.append(pull)
                pull.add_done_callback(ring)
            # Any of the calls that is ready: an earlier call may run after a later one, and wait for the result of its
            # frame.
            for pull in [pull for pull in pulls if pull.done()]:
                pulls.remove(pull)
                brought = pull.result()
                early[brought.number] = brought
            one = early.pop(pulled, None)
            if one is None:
                carrier.wait(LOOK, not is_full, bool(arrived))
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
    """Frames that have arrived, in their order, until there is room for them in main's link.

    Args:
        carrier: puts them there.
        much: bytes from which on the host is to hold others back.
    """

    def __init__(self, carrier: Carrier, much: int) -> None:
        self._carrier, self._much = carrier, much
        self._frames: deque[list[Any]] = deque()
        self._bytes = 0
        self._has_ended = False

    def __bool__(self) -> bool:
        return bool(self._frames)

    @property
    def is_much(self) -> bool:
        """Whether the host is to hold others back."""
        return self._bytes >= self._much

    def add(self, frame: list[Any]) -> None:
        """Takes one in, which may be empty."""
        if frame and not self._has_ended:
            self._frames.append(frame)
            self._bytes += bytes_of(frame)

    def put(self) -> None:
        """Puts as many as find room."""
        while self._frames and self._carrier.put(self._frames[0]):
            self._bytes -= bytes_of(self._frames.popleft())

    def end(self) -> None:
        """Drops all that are there and that come: main reads no more, so there may never be room."""
        self._has_ended = True
        self._frames.clear()
        self._bytes = 0


def _ringing(lane: _Lane) -> Callable[[object], None]:
    """Rings, as long as the lane is there: Ray keeps what an answer that never comes is to call."""
    found = weakref.ref(lane)

    def ring(_: object) -> None:
        lane = found()
        if lane is not None:
            lane.ring()

    return ring


def _differences(theirs: dict[str, str]) -> str:
    """The versions that differ where they must not, in words; empty if none does."""
    ours = versions()
    pairs = [(name, ours[name], theirs[name]) for name in ours if name in theirs]
    differ = [
        f"{name} is {here} here and {there} there"
        for name, here, there in pairs
        if _release(name, here) != _release(name, there)
    ]
    return f"the versions differ: {'; '.join(differ)}" if differ else ""


def _release(name: str, version: str) -> Any:
    """As much of a version as must be the same: all of this package's, major and minor of others."""
    return version if name == "torchdata-rs" else version.split(".")[:2]
