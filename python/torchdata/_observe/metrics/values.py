"""The statistics of a loader as measurements with names, kinds and labels: what all exporters hand on.

Role: knows no library. Names follow Prometheus: base units, `_total` for what only grows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from torchdata._observe.stats.model import LoaderStats, ProcessStats

__all__ = ["FAMILIES", "Family", "Grown", "Measurement", "Measuring", "measure", "rank_of", "services_in"]

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True)
class Family:
    """Measurements of one name.

    Args:
        name: without the prefix `torchdata_`, and of counters without `_total`.
        kind: whether it only grows.
        unit: as OpenTelemetry writes it.
        help: what it means.
        labels: what tells its measurements apart, besides the rank.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """A number."""

    family: Family
    labels: tuple[str, ...]
    value: float


def _loader(name: str, kind: Kind, unit: str, help: str) -> Family:
    return Family(name, kind, unit, help)


_OF_LOADER: dict[str, Family] = {
    "items": _loader("items", "counter", "{item}", "Items that the loader has handed out."),
    "bytes": _loader("bytes", "counter", "By", "Bytes that workers have sent to the main process."),
    "seconds": _loader("epoch_seconds", "counter", "s", "Time in epochs, from the first item of each on."),
    "waiting_seconds": _loader(
        "waiting_seconds", "counter", "s", "Time that the main process waited for items of workers."
    ),
    "copies": _loader("copies", "counter", "{buffer}", "Buffers that were copied out of full shared memory."),
    "copied_bytes": _loader("copied_bytes", "counter", "By", "Bytes of those buffers."),
    "fragments": _loader("fragments", "counter", "{fragment}", "Pieces that found no room in shared memory."),
    "wake_ups": _loader("wake_ups", "counter", "{wake-up}", "How often a process woke another one."),
    "restarts": _loader("restarts", "counter", "{restart}", "How often a worker was started again."),
    "snapshots": _loader("snapshots", "counter", "{snapshot}", "States that workers have sent."),
    "epoch": _loader("epoch", "gauge", "{epoch}", "The epoch that runs, or ran last."),
    "items_per_second": _loader("items_per_second", "gauge", "{item}/s", "Items a second, of late."),
    "bytes_per_second": _loader("bytes_per_second", "gauge", "By/s", "Bytes a second, of late."),
    "loading": _loader("loading_ratio", "gauge", "1", "Share of the time in the loader, of late."),
    "waiting": _loader("waiting_ratio", "gauge", "1", "Share of the time that main waited for workers, of late."),
    "held_up": _loader("held_up_ratio", "gauge", "1", "Share of the time that workers waited for room, of late."),
    "step_seconds": _loader("step_seconds", "gauge", "s", "Time between two items outside the loader, of late."),
    "prefetched": _loader("prefetched_items", "gauge", "{item}", "Items that lie ready."),
    "occupancy": _loader("occupancy_ratio", "gauge", "1", "Items that lie ready, by the most that may."),
    "shared_memory": _loader("shared_memory_bytes", "gauge", "By", "Shared memory in use."),
    "shared_memory_peak": _loader("shared_memory_peak_bytes", "gauge", "By", "The most that ever was."),
    "shared_memory_limit": _loader("shared_memory_limit_bytes", "gauge", "By", "The most that may be."),
}
_PROCESS = ("process",)
_OF_PROCESS: dict[str, Family] = {
    "items": Family("process_items", "counter", "{item}", "Items that a process has sent.", _PROCESS),
    "busy_seconds": Family("process_busy_seconds", "counter", "s", "Time in its pipes.", _PROCESS),
    "input_seconds": Family("process_input_wait_seconds", "counter", "s", "Time that it waited for items.", _PROCESS),
    "room_seconds": Family(
        "process_room_wait_seconds", "counter", "s", "Time that it waited for its readers.", _PROCESS
    ),
    "cpu_seconds": Family("process_cpu_seconds", "counter", "s", "Processor time of its threads.", _PROCESS),
    "in_flight": Family("process_in_flight_items", "gauge", "{item}", "Items sent and not taken yet.", _PROCESS),
}
_PIPE = ("process", "pipe")
_OF_PIPE: dict[str, Family] = {
    "items_out": Family("pipe_items", "counter", "{item}", "Items that a pipe has yielded.", _PIPE),
    "own_seconds": Family("pipe_own_seconds", "counter", "s", 'Time in a pipe alone, with stats="full".', _PIPE),
    "buffered_items": Family("pipe_buffered_items", "gauge", "{item}", "Items that a pipe holds.", _PIPE),
}
#: All families.
FAMILIES: tuple[Family, ...] = (*_OF_LOADER.values(), *_OF_PROCESS.values(), *_OF_PIPE.values())


def rank_of(loader: Any) -> int:
    """The rank that a loader runs on: its service's, the job's, or that of the environment; 0 where there is none."""
    for service in services_in(loader.reading_service):
        if hasattr(service, "count_ranks"):
            try:
                service.count_ranks()
            except TypeError:  # the job has not begun
                break
            if getattr(service, "_pg", None) is not None:
                return int(service._rank)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0


def services_in(service: Any) -> Iterator[Any]:
    if service is not None:
        yield service
        for one in getattr(service, "reading_services", ()):
            yield from services_in(one)


class Measuring:
    """Measures a loader again and again.

    "Of late" is since the measuring before, but for those of which the loader had nothing to tell.

    Args:
        loader: the loader. It is measured also after its end, and asked for nothing that starts anything.
        rank: the label `rank` of all measurements; None finds out.
    """

    def __init__(self, loader: Any, rank: int | None = None) -> None:
        if not callable(getattr(loader, "stats", None)):
            raise TypeError(f"metrics are those of a DataLoader2, but got {loader!r}")
        self._loader = loader
        self._rank = rank
        self._last: LoaderStats | None = None
        self._grown = Grown()

    @property
    def rank(self) -> str:
        """The label."""
        return str(rank_of(self._loader) if self._rank is None else self._rank)

    def measure(self) -> list[Measurement]:
        """All that is known now."""
        found, self._last = measure(self._loader, self._last)
        return self._grown.since_the_beginning(found, self._last)


class Grown:
    """Keeps counters from falling, which readers take for a new beginning, and count all of the value once more.

    Times are differences and estimates, so they may come out a little lower than before: they stay then. Those that the
    system counts begin anew in a process that takes the place of one that died: what that had is added.
    """

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        #: By family and labels: the number itself, and what was told of it.
        self._last: dict[tuple[str, tuple[str, ...]], tuple[float, float]] = {}

    def since_the_beginning(self, found: list[Measurement], stats: LoaderStats) -> list[Measurement]:
        """What was measured of the statistics, with counters that never fall."""
        pids = {process.name: process.pid for process in stats.processes}
        replaced = {name for name, pid in pids.items() if self._pids.get(name, pid) != pid}
        self._pids.update(pids)
        return [self._told(one, replaced) if one.family.kind == "counter" else one for one in found]

    def _told(self, one: Measurement, replaced: set[str]) -> Measurement:
        key = one.family.name, one.labels
        number, told = self._last.get(key, (0.0, 0.0))
        of_system = one.family is _OF_PROCESS["cpu_seconds"]
        if one.labels and one.labels[0] in replaced and (of_system or one.value < number):
            number = 0.0
        told += max(0.0, one.value - number)
        self._last[key] = max(number, one.value), told
        return replace(one, value=told)


def measure(loader: Any, last: LoaderStats | None) -> tuple[list[Measurement], LoaderStats]:
    """All that is known of a loader now, and the statistics that the next measuring is to begin with.

    Args:
        loader: the loader.
        last: those of the measuring before.
    """
    whole: LoaderStats = loader.stats()
    recent = whole if last is None else loader.stats(last)
    found = []
    for name, family in _OF_LOADER.items():
        value = getattr(whole if family.kind == "counter" else recent, name)
        if value is not None:
            found.append(Measurement(family, (), float(value)))
    for process in whole.processes:
        found += _of_process(process)
    return found, whole


def _of_process(process: ProcessStats) -> Iterator[Measurement]:
    for name, family in _OF_PROCESS.items():
        value = getattr(process, name)
        if value is not None:
            yield Measurement(family, (process.name,), float(value))
    seen: dict[str, int] = {}
    for pipe in process.pipes:
        # Two pipes of one class and function are told apart by a number.
        seen[pipe.name] = seen.get(pipe.name, 0) + 1
        called = pipe.name if seen[pipe.name] == 1 else f"{pipe.name} {seen[pipe.name]}"
        for name, family in _OF_PIPE.items():
            value = getattr(pipe, name)
            if value is not None:
                yield Measurement(family, (process.name, called), float(value))
