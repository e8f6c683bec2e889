"""`torchdata.trace`: makes the logs of all processes, and at the end one file of them.

Role: runs in main; owns the logs. They lie in anonymous memory that children open through `/proc`, so that nothing is
left behind if a process dies, and the file has the events of a child that was killed. Writing the file takes seconds
for a million events, after the traced part.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torchdata import _tracing
from torchdata._native import TraceLog, end_trace
from torchdata._observe.trace.carried import CarriedLog
from torchdata._observe.trace.chrome import ProcessLog, write_trace
from torchdata._observe.trace.naming import Names
from torchdata._observe.trace.ranges import range_maker

if TYPE_CHECKING:
    from torchdata._native import StatsBoard

__all__ = ["Trace"]

#: The most events of a process, which take 64 bytes each.
MOST = 1 << 28
#: Seconds within which hosts on other machines say what their workers have written.
ANSWERED = 10.0


class _Session:
    """The logs that main has made for one trace."""

    def __init__(self, capacity: int, ranges: bool) -> None:
        self.began = time.monotonic_ns()
        self._capacity = capacity
        self._ranges = ranges
        self.log = TraceLog(capacity)
        self._names = Names(self.log)
        #: By the moment at which a loader's board was made, and the page of the child.
        self.children: dict[tuple[int, int], tuple[str, TraceLog]] = {}
        #: By number, those of children on other machines: name, loader, page and log.
        self.carried: dict[int, tuple[str, int, int, CarriedLog]] = {}

    def register(self, datapipe: Any) -> _tracing.Registration:
        number = self._names.number(datapipe)
        maker: Callable[[bool], None] | None = None
        if self._ranges:
            from torchdata._reporting import name_of

            maker = range_maker(name_of(datapipe))
        return self.log, number, maker

    def path_for(self, board: StatsBoard, page: int, name: str, child: _tracing.Traceable) -> str | None:
        loader = board.made()[1]
        carried: CarriedLog | None = child.carried_log(self._capacity)
        if carried is not None:
            self.carried[carried.number] = (name, loader, page, carried)
            return carried.path
        if (loader, page) not in self.children:
            try:
                self.children[loader, page] = (name, TraceLog(self._capacity))
            except OSError:
                return None
        return f"/proc/{os.getpid()}/fd/{self.children[loader, page][1].fileno()}"

    def stop(self) -> None:
        """Ends the writing in all processes."""
        for log in [self.log, *(log for _, log in self.children.values())]:
            log.stop()
        carried = [log for *_, log in self.carried.values()]
        for one in carried:
            one.stop()
        until = time.monotonic() + ANSWERED
        for one in carried:
            one.finish(until - time.monotonic())

    def logs(self) -> list[ProcessLog]:
        """The logs that were written: of main first, then of the children."""
        found = [ProcessLog("main", None, 0, *self.log.read())]
        found += [
            ProcessLog(name, loader, page, *log.read()) for (loader, page), (name, log) in sorted(self.children.items())
        ]
        for name, loader, page, carried in sorted(self.carried.values(), key=lambda one: one[1:3]):
            node, actor = carried.place or ("another machine", "none")
            log = ProcessLog(f"{name} on node {node}", loader, page, *carried.read())
            log.ahead, log.error = carried.clock()
            log.actor = actor
            found.append(log)
        return found


class Trace:
    """See `torchdata.trace`.

    Attributes:
        path: the file; None if there is none.
        events: how many events were written; 0 before the end.
        left_out: how many found no room.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, events: int, ranges: bool) -> None:
        if isinstance(events, bool) or not isinstance(events, int):
            raise TypeError(f"trace: events must be an integer, not {events!r}")
        if not 1 <= events <= MOST:
            raise ValueError(f"trace: events must be from 1 to {MOST}, not {events}")
        self.path = None if path is None else os.path.abspath(os.fspath(path))
        self._most = events
        self._ranges = ranges
        self._session: _Session | None = None
        self.events = 0
        self.left_out = 0

    def __enter__(self) -> Trace:
        if _tracing.current is not None:
            raise RuntimeError("trace: a trace of this process is being written already; end that one first")
        if self.path is not None:
            _check_place(self.path)
        self._session = _Session(self._most, self._ranges)
        self._session.log.begin()
        _tracing.switch(self._session)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session, self._session = self._session, None
        if session is None or _tracing.current is not session:
            return  # a forked child leaves the block of its parent
        _tracing.switch(None)
        end_trace()
        session.stop()
        if self.path is None:
            return
        try:
            self._write(self.path, session)
        except Exception as error:
            if exc_value is None:
                raise
            exc_value.add_note(f"After that, writing the trace {self.path} failed, too: {error!r}")

    def _write(self, path: str, session: _Session) -> None:
        logs = session.logs()
        self.left_out = sum(log.left_out for log in logs)
        self.events = write_trace(path, logs, session.began)
        if self.left_out:
            warnings.warn(
                f"the trace {path} lacks the last {self.left_out} events: the log of a process holds {self._most}; "
                "trace fewer items, or give trace(…, events=…) a larger number (64 bytes of memory each)",
                RuntimeWarning,
                stacklevel=3,
            )


def _check_place(path: str) -> None:
    """Raises now what would be raised when the epoch is over."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"trace: there is no folder {folder} to write {os.path.basename(path)} into")
    if os.path.isdir(path):
        raise IsADirectoryError(f"trace: {path} is a folder; give the name of a file, such as epoch.json.gz")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"trace: no file can be made in {folder}")
