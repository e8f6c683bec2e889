"""Children that hang while main waits for them: found, reported with their stacks, and ended.

Role: main's side, called by the collector in the thread that waits, or by whoever waits for an answer. A process that
hangs is killed, and what it had done is noted; all behind that is a death like any other (`restart.py`).

A process hangs if main has waited for it for the whole `timeout`, and meanwhile nothing was counted in it: no pipe of
its graph has yielded an item, and it has sent nothing. Processor time alone tells nothing, as an endless loop uses it,
too. So the user may give a `patience`, the longer time of a process that works by what the kernel says. A process that
waits for another one is not to blame, unless it is stopped.
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
#: A process works if its threads run, or wait for a processor, for such a share of the time at least.
WORKING = 0.1
#: Seconds beyond the limit for which one on another machine may be unheard.
UNHEARD = 5.0


@dataclass(frozen=True)
class Survived:
    """The ends of children in whose places others are put.

    Args:
        deaths: whether those that die by themselves are among them.
        hangs: after how many seconds one that hangs is ended, to be replaced; None: never.
        patience: the same for one that works; None: no more than for others.
    """

    deaths: bool = False
    hangs: float | None = None
    patience: float | None = None

    @classmethod
    def chosen(cls, on_worker_exit: str, timeout: float | None, on_timeout: str, patience: float | None) -> Survived:
        """What the arguments of a loader say."""
        return cls(on_worker_exit == "restart", timeout if on_timeout == "restart" else None, patience)

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
        limit: the argument that would give it more time.
    """

    how: str
    stack: str
    limit: str
    #: Whether a warning or an error has told of it.
    is_told: bool = False


@dataclass
class _Seen:
    """What was counted in those that main waits for, and since when it has not changed, in seconds of the wait."""

    counts: Any
    since: float
    waited: float


@dataclass
class _Mark:
    """A moment of a process, since which its work is measured.

    Args:
        pid: its number.
        at: the moment.
        looked: when somebody has looked last.
        worked: for how many seconds it had worked by then.
        works: whether it works, by what it did before.
    """

    pid: int
    at: float
    looked: float
    worked: float
    works: bool


def check_on_timeout(name: str, on_timeout: Any, timeout: float | None, patience: Any) -> None:
    """Checks the arguments `on_timeout` and `patience` of a loader.

    Args:
        name: of the class.
        on_timeout: the argument.
        timeout: the seconds after which it matters; None or 0: never.
        patience: the argument.

    Raises:
        ValueError: one is unknown, or lacks what it needs.
    """
    if on_timeout not in ("error", "restart"):
        raise ValueError(f"{name}: on_timeout must be 'error' or 'restart', but got {on_timeout!r}")
    if on_timeout == "restart" and not timeout:
        raise ValueError(
            f"{name}: on_timeout='restart' needs a timeout: after how many seconds without an item a worker hangs"
        )
    if patience is None:
        return
    if on_timeout != "restart":
        raise ValueError(f"{name}: patience needs on_timeout='restart'; else timeout is the limit for all workers")
    if not isinstance(patience, (int, float)) or not (timeout or 0) <= patience < math.inf:
        raise ValueError(
            f"{name}: patience must be None or a number of seconds, at least timeout={timeout:g}, but got {patience!r}"
        )


class Hangs:
    """Finds and ends the children of one group that hang.

    Args:
        members: the children.
        board: has their counters.
        seconds: the timeout.
        patience: the seconds for one that works; None for the timeout.
        in_order: whether main waits for one worker in particular.
    """

    def __init__(
        self,
        members: Members,
        board: Any,
        seconds: float,
        patience: float | None = None,
        in_order: bool = True,
    ) -> None:
        self._members, self._board = members, board
        self._in_order = in_order
        #: The timeout, and the longest time for one that works.
        self.seconds, self.most = seconds, max(seconds, patience or 0.0)
        #: By child, what its work is measured from.
        self._marks: dict[int, _Mark] = {}
        #: By worker that is waited for.
        self._seen: dict[int, _Seen] = {}
        #: By process number.
        self._hung: dict[int, Hung] = {}
        #: Threads of nodes wait side by side; a report takes its time.
        self._reporting = threading.Lock()

    def of(self, process: ChildProcess) -> Hung | None:
        """What is known of a process that has ended because it hung; None if it has not."""
        return self._hung.get(process.pid or 0)

    def look(self, peer: int | None, waited: float, limit: float) -> bool:
        """Called again and again while main waits for an item: ends whoever hangs.

        Args:
            peer: the shard that is waited for.
            waited: for how long, in seconds.
            limit: after how many seconds without progress a process hangs: the timeout, or some times that.

        Returns:
            Whether a process was ended.
        """
        pages = {page["page"] - 1: page for page in self._board.read()}
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
            known = waited - since - _unheard(pages.get(fault), limit)
            if self._is_over(fault, pages.get(fault), known, limit):
                ended |= self._end(fault, pages.get(fault), waited - since)
        return ended

    def end_if_over(self, child: int, waited: float) -> bool:
        """Called again and again while main waits for a child otherwise: ends it if that is too long; whether it is."""
        if waited < self.seconds:
            self._works(child, None)
            return False
        pages = {page["page"] - 1: page for page in self._board.read()}
        is_over = self._is_over(child, pages.get(child), waited, self.seconds)
        if is_over:
            self._end(child, pages.get(child), waited)
        return is_over

    def end(self, child: int, waited: float) -> None:
        """Ends a child that main has waited for otherwise for too long."""
        pages = {page["page"] - 1: page for page in self._board.read()}
        self._end(child, pages.get(child), waited)

    def _waited_for(self, peer: int | None, pages: dict[int, Any]) -> Sequence[int]:
        peer = (peer or 0) % self._members.num_workers
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
            child = waits[0]["peer"] - 1
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
        is_circle = any(flow["peer"] - 1 in chain for flow in waits)
        return chain[0] if is_circle else chain[-1]

    def _is_stopped(self, child: int) -> bool:
        return self._members.processes[child].is_stopped

    def _is_over(self, child: int, page: Any, still: float, limit: float) -> bool:
        """Whether a child that has made no progress for so long hangs. One for which there is no room yet does not."""
        if not self._members.processes[child].is_up:
            return False
        begins = page is None or not self._is_at(page, child) or not _runs(page)
        works = self._works(child, page)
        if still < limit or self._is_stopped(child):
            return still >= limit
        most = limit * self.most / self.seconds if works else limit
        return still >= (max(most, STARTING) if begins else most)  # it imports the program, or loads a state

    def _works(self, child: int, page: Any) -> bool:
        """Whether a child works, by what it did in the last half timeout that was looked at; it does until it is known.

        Without a patience nobody asks.
        """
        if self.most == self.seconds:
            return False
        process = self._members.processes[child]
        now, pid, mark = time.monotonic(), process.pid or 0, self._marks.get(child)
        if mark is not None and (mark.pid != pid or now - mark.looked > self.seconds):
            mark = None  # another process, or another wait
        if mark is not None and now - mark.at < self.seconds / 2:
            mark.looked = now
            return mark.works
        worked = process.worked(page)
        if worked is None:
            return False
        grown = math.inf if mark is None or worked < mark.worked else worked - mark.worked  # threads may have ended
        # The kernel counts a wait for a processor when it is over: who stands in the queue works, too.
        works = mark is None or grown >= WORKING * (now - mark.at) or process.is_running
        self._marks[child] = _Mark(pid, now, now, worked, works)
        return works

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
            mark = self._marks.get(child)
            works = not stopped and mark is not None and mark.pid == pid and mark.works
            made, limit = ("worked, but made", "patience") if works else ("made", "timeout")
            how = f"{made} nothing for {duration(waited)}, {where}{runs}, and was killed for it (`{limit}`)"
            self._hung[pid] = Hung(how, stack, limit, is_told=stopped)
            process.kill()
        if stopped:  # it went on to tell where it stands, and may have done its part: then nobody notices its death
            warnings.warn(f"{process.called} {how}\n{stack}", RuntimeWarning, stacklevel=3)
        return True


def _unheard(page: Any, limit: float) -> float:
    """Seconds of late of which nothing is known of a process, as its counters come from another machine.

    None are left where nothing has come for so long that it, or its host, hangs.
    """
    if page is None or not page["heard"]:
        return 0.0
    unheard = max(0.0, (time.monotonic_ns() - page["heard"]) / 1e9)
    return unheard if unheard < limit + UNHEARD else 0.0


def _counts(page: Any) -> Any:
    """All that a process has counted, and which process it is."""
    if page is None:
        return None
    flows, pipes = page["flows"], page["pipes"]
    return page["pid"], page["epoch"], [flow["items"] for flow in flows], [pipe["yielded"] for pipe in pipes]


def _runs(page: Any) -> bool:
    """Whether an epoch runs in a process, and it does not wait for a command."""
    return bool(page["span"]["since"] and not page["idle"]["since"])
