"""Main's side of a worker on another machine: what `ChildProcess` is to one on this machine.

Role: runs in main. The worker has the links that any child has, of which main has the usual ends. The other ends are a
carrier's: a thread of this module takes commands and words out of them and tells the worker's host, and puts into them
what it pulls from there. So main's collector, commands, leases and states see a child like any other.

Everything that comes from a host goes through its own worker's thread and links: what an earlier worker in the same
place has sent cannot come to a later one's.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.remote.host import About, Pulled, apart, versions
from torchdata._engine.workers.child import MAIN, ChildSetup
from torchdata._native import Carrier, OwnedDescriptor

__all__ = ["Actor", "Hosts", "RemoteWorker", "VersionsDiffer"]

#: Pulls that wait at a host, so that it makes a frame while another one is on its way.
AHEAD = 2
#: Bytes of one message with commands.
TOLD = 1 << 20
#: Set in the order of the end, which is beyond all epochs; the bits below tell those.
_END = 1 << 32
#: Seconds after which a wait looks around by itself, and for which an end waits for the thread.
LOOK, JOINED = 1.0, 5.0

#: Each worker's own number: process numbers of other machines may repeat.
_numbers = itertools.count(1)


class Actor(Protocol):
    """A host somewhere, as main calls it. Each call returns at once, and its future may hold Ray's error."""

    def check(self) -> None:
        """Raises where nobody can be called any more."""

    def begin(self) -> Future[About]: ...

    def tell(self, number: int, words: list[int] | None, frame: list[Any]) -> None: ...

    def pull(self, most: int) -> Future[Pulled]: ...

    def kill(self) -> None: ...

    @property
    def identity(self) -> str: ...


class Hosts(Protocol):
    """Who makes hosts. It takes the place of multiprocessing's context."""

    #: Bytes of a frame from which on no further unit is added.
    chunk_bytes: int

    def host(self, setup: ChildSetup) -> Actor:
        """Asks for a host, and does not wait for it."""

    def why(self, error: BaseException) -> str:
        """What an error of an actor's call says of its end."""


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
        self._wake = threading.Event()
        self._is_killed = False
        self._thread: threading.Thread | None = None
        self._actor: Actor | None = None
        self._carrier: Carrier | None = None
        #: What it is, once it is up.
        self.about: About | None = None
        ends = os.pipe()
        #: Its end is written into one; who watches it has copies of the other.
        self._ending, self._sign = (OwnedDescriptor(end) for end in reversed(ends))

    def _launch(self) -> int:
        self._actor = self._hosts.host(self._setup)
        self._thread = threading.Thread(target=self._run, name=f"torchdata-{self.name}", daemon=True)
        self._thread.start()
        return next(_numbers)

    # -- its life, as main sees it -----------------------------------------------------------------

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
        carrier = self._carrier
        if carrier is not None:
            carrier.ring()

    # -- its thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        actor = self._actor
        assert actor is not None
        try:
            self._carry(actor)
        except BaseException as error:
            self.told = self._hosts.why(error)
        with contextlib.suppress(Exception):
            actor.kill()
        self._has_ended = True
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
        lines, bells, index = self._setup.lines, self._setup.common.bells.shared, self._setup.index
        self._carrier = carrier = Carrier(lines.control.shared, lines.outputs[0].shared, bells, index, MAIN)
        pulls: deque[Future[Pulled]] = deque()
        early: dict[int, Pulled] = {}
        told = pulled = 0
        lacking: Pulled | None = None
        is_ending = False
        while not self._is_killed:
            actor.check()
            words, commands = carrier.take(TOLD)
            if words is not None or commands:
                is_ending |= words is not None and bool(words[0] & _END)
                actor.tell(told, words, apart(commands))
                told += 1
            while len(pulls) < AHEAD:
                pull = actor.pull(self._hosts.chunk_bytes)
                pulls.append(pull)
                pull.add_done_callback(_ringing(carrier))
            if lacking is None:
                while pulls and pulls[0].done():
                    one = pulls.popleft().result()
                    early[one.number] = one
                lacking = early.pop(pulled, None)
                pulled += lacking is not None
            # Once main has ordered the end it reads no more, and there may be no room.
            if lacking is not None and (not lacking.frame or is_ending or carrier.put(lacking.frame)):
                if lacking.words is not None:
                    carrier.put_words(lacking.words)
                if lacking.has_ended:
                    self.exitcode = lacking.exitcode
                    return
                lacking = None
                continue
            carrier.wait(LOOK, lacking is not None)

    def _await(self, begun: Future[About]) -> About | None:
        """Waits until the worker is up; None if it was killed before."""
        begun.add_done_callback(lambda _: self._wake.set())
        while not self._is_killed:
            if begun.done():
                return begun.result()
            self._wake.wait(LOOK)
        return None


def _ringing(carrier: Carrier) -> Callable[[object], None]:
    def ring(_: object) -> None:
        carrier.ring()

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
