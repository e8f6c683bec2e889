"""Finds child processes that hang, reports the stacks of these processes, and kills them.

A process hangs if the main process has waited `timeout` seconds for this process, and the process's counters have not
changed during this time. A counter changes whenever a pipe of the process yields an item, or the process sends a
message. The use of a processor alone is not progress, because an endless loop also uses a processor. For processes that
use a processor, the limit is `patience` instead of `timeout`. A process that waits for another process is considered to
hang only if it is suspended (SIGSTOP).
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

#: The minimum limit in seconds for a process that computes its first item, because it imports the program and loads a
#: state.
STARTING = 60.0
#: A process is considered to work if its threads spend at least the fraction `WORKING` of the time using a processor or
#: waiting for one.
WORKING = 0.1
#: A process on another machine is also considered to hang if its last counters are older than the process's time limit
#: plus `SILENCE` seconds.
SILENCE = 5.0


@dataclass(frozen=True)
class Survived:
    exits: bool = False
    hangs: float | None = None
    patience: float | None = None

    @classmethod
    def chosen(cls, loader: Any) -> Survived:
        hangs = loader.timeout if loader.on_timeout == "restart" else None
        return cls(loader.on_worker_exit == "restart", hangs, loader.patience)

    def __bool__(self) -> bool:
        return self.exits or self.hangs is not None


NONE = Survived()


@dataclass
class Hung:
    how: str
    stack: str
    limit: str
    shown: bool = False


@dataclass
class _Seen:
    """The last known counters of a worker and of the processes that it waits for. `since` is the time when the counters
    last changed, and `waited` is the time when they were last read, both in seconds since the main process began to
    wait.
    """

    counts: Any
    since: float
    waited: float


@dataclass
class _WorkMark:
    """A measurement of how much of the time a process uses a processor.

    Args:
        at: the time when the current measurement began.
        looked: the time when this object was last used.
        worked: the processor time until `at`, in seconds.
        works: whether the process used a processor during the last complete measurement.
    """

    pid: int
    at: float
    looked: float
    worked: float
    works: bool


def check_restarts(name: str, on_worker_exit: Any, on_timeout: Any, timeout: float | None, patience: Any) -> None:
    if on_worker_exit not in ("error", "restart"):
        raise ValueError(f"{name}: on_worker_exit must be 'error' or 'restart', but got {on_worker_exit!r}")
    if on_timeout not in ("error", "restart"):
        raise ValueError(f"{name}: on_timeout must be 'error' or 'restart', but got {on_timeout!r}")
    if on_timeout == "restart" and not timeout:
        raise ValueError(
            f"{name}: on_timeout='restart' needs a timeout, the seconds after which a slow worker is replaced"
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
    """Finds and kills the children of one group that hang.

    Args:
        first_page: the index of the first child's counters.
        seconds: the timeout.
        patience: the timeout in seconds for a child that uses a processor; None for the same timeout as `seconds`.
        in_order: whether the main process waits for one specific worker.
    """

    def __init__(
        self,
        members: Members,
        board: Any,
        first_page: int,
        seconds: float,
        patience: float | None = None,
        in_order: bool = True,
    ) -> None:
        self._members, self._board, self._first_page = members, board, first_page
        self._in_order = in_order
        #: `seconds`: the timeout of a child that uses no processor. `most`: the timeout of a child that uses a
        #: processor.
        self.seconds, self.most = seconds, max(seconds, patience or 0.0)
        self._marks: dict[int, _WorkMark] = {}
        self._seen: dict[int, _Seen] = {}
        self._hung: dict[int, Hung] = {}
        #: This lock is held while a hanging child is reported, because several threads may detect the same child.
        self._reporting = threading.Lock()

    def of(self, process: ChildProcess) -> Hung | None:
        return self._hung.get(process.pid or 0)

    def look(self, peer: int | None, waited: float, limit: float) -> bool:
        """Call `look` repeatedly while the main process waits for an item; returns whether a process was killed.

        Args:
            peer: the number of the shard that the main process waits for; None means shard 0.
            waited: the number of seconds that the main process has waited for the item.
            limit: the number of seconds without progress after which a process is considered to hang; a multiple of the
                timeout.
        """
        pages = self._pages()
        ended = False
        for worker in self._waited_for(peer, pages):
            chain = self._chain(worker, pages)
            fault = self._fault(chain, pages)
            counts = [_counts(pages.get(child)) for child in chain]
            seen = self._seen.get(worker)
            if seen is None or waited < seen.waited:  # a new wait for an item has begun
                seen = _Seen(counts, 0.0, waited)
            since = seen.since if seen.counts == counts else waited
            self._seen[worker] = _Seen(counts, since, waited)
            known = waited - since - _silence(pages.get(fault), limit)
            if self._is_over(fault, pages.get(fault), known, limit):
                ended |= self.end(fault, waited - since)
        return ended

    def end_if_over(self, child: int, waited: float) -> bool:
        """`end_if_over` must be called repeatedly while the main process waits until a child executes a command. If a
        child takes too long to execute its command, kills the child and returns True."""
        if waited < self.seconds:
            self._works(child, None)
            return False
        pages = self._pages()
        is_over = self._is_over(child, pages.get(child), waited, self.seconds)
        if is_over:
            self.end(child, waited)
        return is_over

    def _pages(self) -> dict[int, Any]:
        return {page["page"] - self._first_page: page for page in self._board.read()}

    def _waited_for(self, peer: int | None, pages: dict[int, Any]) -> Sequence[int]:
        workers = range(self._members.num_workers)
        if self._in_order:
            return [workers[(peer or 0) % len(workers)]]
        # Suspended workers are included, because a worker may be suspended before it executes a received command.
        at_work = [child for child in workers if self._is_stopped(child) or (child in pages and _runs(pages[child]))]
        return at_work or workers

    def _chain(self, child: int, pages: dict[int, Any]) -> list[int]:
        """Returns a chain of children that begins with `child`: each child waits for the next child."""
        chain: list[int] = []
        while child in range(len(self._members.processes)) and child not in chain:
            chain.append(child)
            waits = [flow for flow in pages[child]["flows"] if flow["wait"]["since"]] if child in pages else []
            if not waits or not self._is_at(pages[child], child):
                break
            child = waits[0]["peer"] - self._first_page
        return chain

    def _is_at(self, page: Any, child: int) -> bool:
        return self._members.processes[child].has_page(page)

    def _fault(self, chain: list[int], pages: dict[int, Any]) -> int:
        """Returns the child of `chain` that causes the wait: a suspended child if there is one, or else the last child.
        If the children wait for each other in a circle, returns the first child of `chain`.
        """
        stopped = next((child for child in chain if self._is_stopped(child)), None)
        if stopped is not None:
            return stopped
        waits = [flow for flow in pages[chain[-1]]["flows"] if flow["wait"]["since"]] if chain[-1] in pages else []
        is_cycle = any(flow["peer"] - self._first_page in chain for flow in waits)
        return chain[0] if is_cycle else chain[-1]

    def _is_stopped(self, child: int) -> bool:
        return self._members.processes[child].is_stopped

    def _is_over(self, child: int, page: Any, idle: float, limit: float) -> bool:
        if not self._members.processes[child].is_up:
            return False
        begins = page is None or not self._is_at(page, child) or not _runs(page)
        works = self._works(child, page)
        if idle < limit or self._is_stopped(child):
            return idle >= limit
        most = limit * self.most / self.seconds if works else limit
        return idle >= (max(most, STARTING) if begins else most)  # the child may import a program or load a state

    def _works(self, child: int, page: Any) -> bool:
        """Returns whether a child uses a processor, measured over periods of half the timeout; True during the first
        period.
        """
        if self.most == self.seconds:
            return False
        process = self._members.processes[child]
        now, pid, mark = time.monotonic(), process.pid or 0, self._marks.get(child)
        if mark is not None and (mark.pid != pid or now - mark.looked > self.seconds):
            mark = None  # the measurement belongs to another process or another wait
        if mark is not None and now - mark.at < self.seconds / 2:
            mark.looked = now
            return mark.works
        worked = process.worked(page)
        if worked is None:
            return False
        # `worked` decreases when a thread of the process ends; if so, the process is considered to work.
        grown = math.inf if mark is None or worked < mark.worked else worked - mark.worked
        # The kernel adds the time of a wait for a processor only when the wait ends, so `is_running` checks for a wait
        # that has not ended.
        works = mark is None or grown >= WORKING * (now - mark.at) or process.is_running
        self._marks[child] = _WorkMark(pid, now, now, worked, works)
        return works

    def end(self, child: int, waited: float) -> bool:
        """Kills a child that has made no progress for `waited` seconds; returns False if the child has already
        exited."""
        from torchdata._observe.show.table import duration
        from torchdata._observe.stats.reading import pipe_at_work

        process = self._members.processes[child]
        page: Any = self._pages().get(child)
        with self._reporting:
            pid = process.pid
            if process.ended or pid is None or pid in self._hung:
                return False
            is_here = page is not None and self._is_at(page, child)
            stopped = self._is_stopped(child)
            where, stack = process.current_frame(page if is_here else None, wakes=stopped)
            pipe = pipe_at_work(page) if is_here else None
            runs = f", in {pipe}" if pipe else ""
            mark = self._marks.get(child)
            works = not stopped and mark is not None and mark.pid == pid and mark.works
            made, limit = ("worked, but yielded", "patience") if works else ("yielded", "timeout")
            how = f"{made} nothing for {duration(waited)}, {where}{runs}, and was therefore killed (`{limit}`)"
            self._hung[pid] = Hung(how, stack, limit, shown=stopped)
            process.kill()
        if stopped:  # other code must not report the exit of this suspended process
            warnings.warn(f"{process.called} {how}\n{stack}", RuntimeWarning, stacklevel=3)
        return True


def _silence(page: Any, limit: float) -> float:
    """Returns the age in seconds of the last counters of a process on another machine; 0 for a local process, and 0 if
    the counters are older than `limit` plus `SILENCE` seconds.
    """
    if page is None or not page["arrived"]:
        return 0.0
    silence = max(0.0, (time.monotonic_ns() - page["arrived"]) / 1e9)
    return silence if silence < limit + SILENCE else 0.0


def _counts(page: Any) -> Any:
    if page is None:
        return None
    flows, pipes = page["flows"], page["pipes"]
    return page["pid"], page["epoch"], [flow["items"] for flow in flows], [pipe["yielded"] for pipe in pipes]


def _runs(page: Any) -> bool:
    return bool(page["span"]["since"] and not page["idle"]["since"])
