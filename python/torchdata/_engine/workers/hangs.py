"""Children that hang while main waits for them: found, reported with their stacks, and ended.

Role: main's side, called by the collector in the thread that waits, or by whoever waits for an answer. A process that
hangs is killed, and what it had done is noted; all behind that is a death like any other (`restart.py`).

A process hangs if main has waited for it for the whole `timeout`, and meanwhile nothing was counted in it: no pipe of
its graph has yielded an item, and it has sent nothing. Processor time tells nothing, as an endless loop uses it, too. A
process that waits for another one is not to blame, unless it is stopped.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchdata._engine.processes.process import ChildProcess
from torchdata._engine.workers.members import Members

__all__ = ["NONE", "STARTING", "Hangs", "Hung", "Survived", "check_on_timeout"]

#: Seconds that a process may take at least to come to its first item: it imports the program, and loads a state.
STARTING = 60.0
#: Seconds beyond the patience for which one on another machine may be unheard.
UNHEARD = 5.0


@dataclass(frozen=True)
class Survived:
    """The ends of children in whose places others are put.

    Args:
        deaths: whether those that die by themselves are among them.
        hangs: after how many seconds one that hangs is ended, to be replaced; None: never.
    """

    deaths: bool = False
    hangs: float | None = None

    def __bool__(self) -> bool:
        return self.deaths or self.hangs is not None


#: Each end is an error.
NONE = Survived()


@dataclass
class Hung:
    """A process that was killed because it hung.

    Args:
        how: what it did, to be set behind its name.
        stack: where it stood.
    """

    how: str
    stack: str
    #: Whether a warning or an error has told of it.
    is_told: bool = False


@dataclass
class _Seen:
    """What was counted in those that main waits for, and since when it has not changed, in seconds of the wait."""

    counts: Any
    since: float
    waited: float


def check_on_timeout(name: str, on_timeout: Any, timeout: float | None) -> None:
    """Checks the argument `on_timeout` of a loader.

    Args:
        name: of the class.
        on_timeout: the argument.
        timeout: the seconds after which it matters; None or 0: never.

    Raises:
        ValueError: it is unknown, or lacks a timeout.
    """
    if on_timeout not in ("error", "restart"):
        raise ValueError(f"{name}: on_timeout must be 'error' or 'restart', but got {on_timeout!r}")
    if on_timeout == "restart" and not timeout:
        raise ValueError(
            f"{name}: on_timeout='restart' needs a timeout: after how many seconds without an item a worker hangs"
        )


class Hangs:
    """Finds and ends the children of one group that hang.

    Args:
        members: the children.
        board: has their counters.
        first_page: the page of the first of them.
        seconds: the timeout.
        in_order: whether main waits for one worker in particular.
    """

    def __init__(self, members: Members, board: Any, first_page: int, seconds: float, in_order: bool = True) -> None:
        self._members, self._board, self._first_page = members, board, first_page
        self._in_order = in_order
        #: The timeout.
        self.seconds = seconds
        #: By worker that is waited for.
        self._seen: dict[int, _Seen] = {}
        #: By process number.
        self._hung: dict[int, Hung] = {}
        #: Threads of nodes wait side by side; a report takes its time.
        self._reporting = threading.Lock()

    def of(self, process: ChildProcess) -> Hung | None:
        """What is known of a process that has ended because it hung; None if it has not."""
        return self._hung.get(process.pid or 0)

    def look(self, peer: int | None, waited: float, patience: float) -> bool:
        """Called again and again while main waits for an item: ends whoever hangs.

        Args:
            peer: the worker that is waited for.
            waited: for how long, in seconds.
            patience: after how many seconds without progress a process hangs.

        Returns:
            Whether a process was ended.
        """
        pages = {page["page"] - self._first_page: page for page in self._board.read()}
        ended = False
        for worker in self._waited_for(peer, pages):
            chain = self._chain(worker, pages)
            fault = self._fault(chain, pages)
            counts = [_counts(pages.get(child)) for child in chain]
            seen = self._seen.get(worker)
            if seen is None or waited < seen.waited:  # another wait
                seen = _Seen(counts, 0.0, waited)
            since = seen.since if seen.counts == counts else waited
            self._seen[worker] = _Seen(counts, since, waited)
            known = waited - since - _unheard(pages.get(fault), patience)
            if known >= self._patience(fault, pages.get(fault), patience):
                ended |= self._end(fault, pages.get(fault), waited - since)
        return ended

    def patience_with(self, child: int) -> float:
        """Seconds that a child may take to obey a command."""
        pages = {page["page"] - self._first_page: page for page in self._board.read()}
        return self._patience(child, pages.get(child), self.seconds)

    def end(self, child: int, waited: float) -> bool:
        """Ends a child that main waits for otherwise; returns whether it lived."""
        pages = {page["page"] - self._first_page: page for page in self._board.read()}
        return self._end(child, pages.get(child), waited)

    def _waited_for(self, peer: int | None, pages: dict[int, Any]) -> Sequence[int]:
        peer = peer or 0
        if self._in_order:
            return [peer]
        at_work = [child for child in range(self._members.num_workers) if child in pages and _runs(pages[child])]
        return at_work or [peer]

    def _chain(self, child: int, pages: dict[int, Any]) -> list[int]:
        """Who waits for whom, from a child on."""
        chain: list[int] = []
        while child in range(len(self._members.processes)) and child not in chain:
            chain.append(child)
            waits = [flow for flow in pages[child]["flows"] if flow["wait"]["since"]] if child in pages else []
            if not waits or not self._is_at(pages[child], child):
                break
            child = waits[0]["peer"] - self._first_page
        return chain

    def _is_at(self, page: Any, child: int) -> bool:
        """Whether a page is that of the process which has the place now."""
        return self._members.processes[child].has_page(page)

    def _fault(self, chain: list[int], pages: dict[int, Any]) -> int:
        """The child to blame: one that is stopped, else the last one, which waits for none of the others."""
        stopped = next((child for child in chain if self._is_stopped(child)), None)
        if stopped is not None:
            return stopped
        waits = [flow for flow in pages[chain[-1]]["flows"] if flow["wait"]["since"]] if chain[-1] in pages else []
        is_circle = any(flow["peer"] - self._first_page in chain for flow in waits)
        return chain[0] if is_circle else chain[-1]

    def _is_stopped(self, child: int) -> bool:
        return self._members.processes[child].is_stopped

    def _patience(self, child: int, page: Any, patience: float) -> float:
        """The patience with a child: more while it comes to its first item, unless it is stopped.

        With one for which there is no room yet there is no end to it.
        """
        if not self._members.processes[child].is_up:
            return math.inf
        begins = page is None or not self._is_at(page, child) or not _runs(page)
        return max(patience, STARTING) if begins and not self._is_stopped(child) else patience

    def _end(self, child: int, page: Any, waited: float) -> bool:
        """Reports where a process stands, and kills it."""
        from torchdata._observe.show.table import duration
        from torchdata._observe.stats.reading import pipe_at_work

        process = self._members.processes[child]
        with self._reporting:
            pid = process.pid
            if process.ended or pid is None or pid in self._hung:
                return False
            is_here = page is not None and self._is_at(page, child)
            stopped = self._is_stopped(child)
            where, stack = process.where_it_stands(page if is_here else None, wakes=stopped)
            pipe = pipe_at_work(page) if is_here else None
            runs = f", in {pipe}" if pipe else ""
            how = f"made nothing for {duration(waited)}, {where}{runs}, and was killed for it (`timeout`)"
            self._hung[pid] = Hung(how, stack, is_told=stopped)
            process.kill()
        if stopped:  # it went on to tell where it stands, and may have done its part: then nobody notices its death
            warnings.warn(f"{process.called} {how}\n{stack}", RuntimeWarning, stacklevel=3)
        return True


def _unheard(page: Any, patience: float) -> float:
    """Seconds of late of which nothing is known of a process, as its counters come from another machine.

    None are left where nothing has come for so long that it, or its host, hangs.
    """
    if page is None or not page["heard"]:
        return 0.0
    unheard = max(0.0, (time.monotonic_ns() - page["heard"]) / 1e9)
    return unheard if unheard < patience + UNHEARD else 0.0


def _counts(page: Any) -> Any:
    """All that a process has counted, and which process it is."""
    if page is None:
        return None
    flows, pipes = page["flows"], page["pipes"]
    return page["pid"], page["epoch"], [flow["items"] for flow in flows], [pipe["yielded"] for pipe in pipes]


def _runs(page: Any) -> bool:
    """Whether an epoch runs in a process, and it does not wait for a command."""
    return bool(page["span"]["since"] and not page["idle"]["since"])
