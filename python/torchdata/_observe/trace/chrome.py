"""From the logs of processes to a file in Chrome's trace format, which Perfetto reads.

Role: runs in main when a trace ends; sums nothing up and needs no loader. Slices are complete events ("X") in
microseconds from the beginning of the trace, to the nanosecond; items that cross to another process or thread are
flows ("s", "t", "f"). Source: "Trace Event Format", and Perfetto's notes on it.

Perfetto ties a point of a flow to the slice of its thread that has begun last, whether that has ended or not, and
points each arrow to the slice that begins later. So the points of a flow stand where their slices begin. A pipe that
waits for an item of its thread begins before that was made, and gets a slice within it for the time from then on.
"""

from __future__ import annotations

import bisect
import gzip
import itertools
import json
import os
import struct
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

__all__ = ["ProcessLog", "write_trace"]

ITEM, SENT, RECEIVED, WAIT_FOR_ITEM, WAIT_FOR_ROOM, TEXT, BYTES = range(1, 8)
#: An item of another thread of this process, whose number is `what`; not in logs.
_TAKEN = 8
_RECORD = struct.Struct("=II7Q")
_ENDED = 1 << 32
#: The first number that no process has: Linux gives 2^22 at most.
_BEYOND_PIDS = (1 << 22) + 1


class Slice(NamedTuple):
    """A span of a thread's time, in nanoseconds."""

    begin: int
    end: int
    kind: int
    what: int
    number: int
    stream: int
    loader: int


@dataclass
class ProcessLog:
    """The log of one process.

    Args:
        name: what the process is called.
        loader: when its loader's board was made; None for main, which serves all loaders.
        page: its page on that board.
        pid: who wrote; 0: nobody.
        left_out: records that found no room.
        records: the others, as they lie in memory.
    """

    name: str
    loader: int | None
    page: int
    pid: int
    left_out: int
    records: bytes
    #: The Ray actor of a worker on another machine, where its records come from; None for those of this one.
    actor: str | None = None
    #: Nanoseconds that main's clock is ahead of that machine's, and by how many that may be wrong; None: unknown.
    ahead: int = 0
    error: int | None = 0
    #: By thread: its slices, those that begin first before the others, the longer ones first.
    threads: dict[int, list[Slice]] = field(default_factory=dict, repr=False)
    #: By number: what was told of the pipe.
    pipes: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)

    def parse(self) -> None:
        """Fills in `threads` and `pipes`."""
        threads: dict[int, list[Slice]] = defaultdict(list)
        # A text's bytes follow it in records of the same thread; other threads may write in between.
        texts: dict[int, tuple[int, int, bytes]] = {}
        for position, (kind, thread, *words) in enumerate(_RECORD.iter_unpack(self.records)):
            if kind == TEXT:
                texts[thread] = (words[2], words[3], b"")
            elif kind == BYTES:
                if thread in texts:
                    number, length, text = texts[thread]
                    texts[thread] = (
                        number,
                        length,
                        text + self.records[64 * position + 8 : 64 * position + 64],
                    )
            else:
                begin, end, what, number, stream, loader, _ = words
                if self.actor is not None:  # who counts on a board of its host's, made when its host was
                    begin, end, loader = begin + self.ahead, end + self.ahead, self.loader or 0
                threads[thread].append(Slice(begin, end, kind, what, number, stream, loader))
            if thread in texts and len(texts[thread][2]) >= texts[thread][1]:
                number, length, text = texts.pop(thread)
                self.pipes[number] = json.loads(text[:length])
        self.threads = {thread: nested(slices) for thread, slices in threads.items()}


def nested(slices: Iterable[Slice]) -> list[Slice]:
    """Slices in order, of which each lies within or outside of each other one, and none is empty."""
    ordered = sorted(slices, key=lambda one: (one.begin, -one.end))
    found: list[Slice] = []
    around: list[int] = []  # ends of the slices that one lies in
    for one in ordered:
        while around and around[-1] <= one.begin:
            around.pop()
        end = max(one.end, one.begin + 1)
        if around:
            end = min(end, around[-1])
        around.append(end)
        found.append(one if end == one.end else one._replace(end=end))
    return found


class _Point(NamedTuple):
    """A point of an item's way: when a slice of a thread begins."""

    process: int
    thread: int
    moment: int


def _crossings(logs: list[ProcessLog]) -> Iterator[list[_Point]]:
    """The ways of items between processes: made, sent, received."""
    received: dict[tuple[int, int, int, int, int], _Point] = {}
    for index, log in enumerate(logs):
        for thread, slices in log.threads.items():
            for one in slices:
                if one.kind == RECEIVED:
                    key = (one.loader, one.what, log.page, one.stream, one.number)
                    received[key] = _Point(index, thread, one.begin)
    for index, log in enumerate(logs):
        for thread, slices in log.threads.items():
            outermost = _outermost(slices)
            ends = [one.end for one in outermost]
            for one in slices:
                if one.kind != SENT:
                    continue
                arrival = received.get((one.loader, log.page, one.what, one.stream, one.number))
                if arrival is None:
                    continue
                way = [_Point(index, thread, one.begin), arrival]
                maker = bisect.bisect_right(ends, one.begin) - 1
                if maker >= 0:
                    way.insert(0, _Point(index, thread, outermost[maker].begin))
                if one.begin <= arrival.moment:  # else clocks of two machines have drifted meanwhile
                    yield way


def _outermost(slices: list[Slice]) -> list[Slice]:
    """The items of the last pipe of a thread."""
    found: list[Slice] = []
    for one in slices:
        if one.kind == ITEM and (not found or one.begin >= found[-1].end):
            found.append(one)
    return found


def _handed_over(index: int, log: ProcessLog) -> list[list[_Point]]:
    """The ways of items between the threads of a process: made in one, handed out by the pipe that reads ahead.

    The slices in which they are taken are put into the log.
    """
    made: dict[tuple[int, int], list[tuple[int, int, Slice]]] = defaultdict(list)  # by pipe and item: (end, thread, …)
    for thread, slices in log.threads.items():
        for one in slices:
            if one.kind == ITEM and one.what < _ENDED:
                made[one.what, one.number].append((one.end, thread, one))
    homes: dict[int, set[int]] = defaultdict(set)
    for (pipe, _), places in made.items():
        homes[pipe].update(thread for _, thread, _ in places)
    crossed = {
        reader: told["reads"][0]
        for reader, told in log.pipes.items()
        if len(told["reads"]) == 1 and homes[reader].isdisjoint(homes[told["reads"][0]])
    }
    ways: list[list[_Point]] = []
    for thread, slices in log.threads.items():
        taken: list[Slice] = []
        for one in slices:
            source = crossed.get(one.what) if one.kind == ITEM else None
            if source is None:
                continue
            before = [place for place in made.get((source, one.number), ()) if place[0] <= one.end]
            if before:
                end, maker, item = max(before)
                begin = min(max(one.begin + 1, end), one.end - 1)
                taken.append(one._replace(begin=begin, kind=_TAKEN, what=maker))
                ways.append([_Point(index, maker, item.begin), _Point(index, thread, begin)])
        if taken:
            log.threads[thread] = nested([*slices, *taken])
    return ways


def _slice_name(one: Slice, log: ProcessLog, names: dict[tuple[int, int], str]) -> tuple[str, str]:
    """Name and category of a slice."""
    if one.kind == ITEM:
        return log.pipes.get(one.what % _ENDED, {}).get("name", "a pipe"), "pipe"
    if one.kind == _TAKEN:
        return f"receive from {_thread_name(one.what, log)}", "link"
    other = "main" if one.what == 0 else names.get((one.loader, one.what), "another process")
    if one.kind == SENT:
        return f"send to {other}", "link"
    if one.kind == RECEIVED:
        return f"receive from {other}", "link"
    return (f"wait for {other}" if one.kind == WAIT_FOR_ITEM else f"wait for room ({other})"), "wait"


def _shown_pids(logs: list[ProcessLog]) -> list[int]:
    """A number of its own for each process: two machines may give the same one."""
    shown: list[int] = []
    spare = itertools.count(_BEYOND_PIDS)
    for log in logs:
        shown.append(next(spare) if log.pid in shown else log.pid)
    return shown


def _clock(log: ProcessLog) -> str:
    """How a machine's clock was brought to main's, in words."""
    error = "by an unknown error" if log.error is None else f"± {log.error / 1e6:.3f} ms"
    return f"{log.ahead / 1e6:+.3f} ms {error}"


def _events(logs: list[ProcessLog], began: int) -> Iterator[str]:
    pids = _shown_pids(logs)
    names = {(log.loader, log.page): log.name for log in logs if log.loader is not None}
    ways = [way for index, log in enumerate(logs) for way in _handed_over(index, log)]
    for index, log in enumerate(logs):
        if not log.threads:
            continue
        pid = pids[index]
        told: dict[str, dict[str, Any]] = {
            "process_name": {"name": log.name},
            "process_sort_index": {"sort_index": index},
        }
        if log.actor is not None:
            told["process_labels"] = {"labels": f"Ray actor {log.actor}, clock {_clock(log)}"}
        for kind, value in told.items():
            yield json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": 0, "ts": 0, "args": value})
        for thread, slices in log.threads.items():
            called = {"name": _thread_name(thread, log)}
            yield json.dumps({"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "ts": 0, "args": called})
            texts: dict[tuple[int, int, int], str] = {}
            for one in slices:
                same = (one.kind, one.what, one.loader)
                if same not in texts:
                    name, category = _slice_name(one, log, names)
                    texts[same] = json.dumps({"name": name, "cat": category})[1:-1]
                yield (
                    f'{{"ph":"X",{texts[same]},"pid":{pid},"tid":{thread},"ts":{_us(one.begin - began)},'
                    f'"dur":{_us(one.end - one.begin)}{_arguments(one)}}}'
                )
    for number, way in enumerate(itertools.chain(ways, _crossings(logs)), 1):
        for place, point in enumerate(way):
            phase = "s" if place == 0 else "f" if place == len(way) - 1 else "t"
            end = ',"bp":"e"' if phase == "f" else ""
            yield (
                f'{{"ph":"{phase}","name":"item","cat":"item","id":{number},"pid":{pids[point.process]},'
                f'"tid":{point.thread},"ts":{_us(point.moment - began)}{end}}}'
            )


def _arguments(one: Slice) -> str:
    if one.kind == ITEM:
        return ',"args":{"ended":true}' if one.what >= _ENDED else f',"args":{{"item":{one.number}}}'
    if one.kind == _TAKEN:
        return f',"args":{{"item":{one.number}}}'
    if one.kind in (SENT, RECEIVED):
        return f',"args":{{"item":{one.number},"epoch":{one.stream >> 32}}}'
    return ""


def _thread_name(thread: int, log: ProcessLog) -> str:
    if thread == log.pid:
        return "main thread"
    roots = {one.what % _ENDED for one in _outermost(log.threads[thread])}
    readers = [told["name"] for told in log.pipes.values() if roots.intersection(told["reads"])]
    return f"thread of {readers[0]}" if readers else f"thread {thread}"


def _us(nanoseconds: int) -> str:
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), 1000)
    return f"{sign}{whole}.{rest:03d}"


def write_trace(path: str, logs: list[ProcessLog], began: int) -> int:
    """Writes a trace, compressed if the name ends in `.gz`; returns how many slices and flows it has.

    The file appears whole or not at all.
    """
    for log in logs:
        log.parse()
    count = 0
    handle, temporary = tempfile.mkstemp(prefix=".trace-", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as raw, _writer(raw, path) as file:
            file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
            for event in _events(logs, began):
                file.write(b"\n" if not count else b",\n")
                file.write(event.encode())
                count += 1
            left_out = {log.name: log.left_out for log in logs if log.left_out}
            clocks = {f"{log.name}, Ray actor {log.actor}": _clock(log) for log in logs if log.actor is not None}
            other = {"left out": left_out, "clocks": clocks}
            beside = json.dumps({name: value for name, value in other.items() if value})
            file.write(f'\n],"otherData":{beside}}}\n'.encode())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return count


def _writer(raw: IO[bytes], path: str) -> Any:
    return gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.endswith(".gz") else raw
