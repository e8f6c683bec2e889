"""The statistics of a loader as measurements with names, kinds and labels: what all exporters hand on.

Role: knows no library. Names follow Prometheus: base units, `_total` for what only grows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchdata._observe.stats.declaring import Family, families_of
from torchdata._observe.stats.model import LoaderStats, PipeStats, ProcessStats

__all__ = ["FAMILIES", "Family", "Grown", "Measurement", "Measuring", "measure", "rank_of", "services_in"]


@dataclass(frozen=True)
class Measurement:
    """A number."""

    family: Family
    labels: tuple[str, ...]
    value: float


_OF_LOADER = families_of(LoaderStats)
_OF_PROCESS = families_of(ProcessStats, "process_", ["process"])
_OF_PIPE = families_of(PipeStats, "pipe_", ["process", "pipe"])
#: All families.
FAMILIES: tuple[Family, ...] = (*_OF_LOADER.values(), *_OF_PROCESS.values(), *_OF_PIPE.values())


def rank_of(loader: Any) -> int:
    """The rank that a loader runs on: its service's, the job's, or that of the environment; 0 if there is none."""
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

    Times are differences and estimates, so they may come out a little lower than before: they stay then. Counters of
    the system begin anew in a process that takes the place of one that died: the value of the dead one is added.
    """

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        #: By family and labels: the number itself, and what was told of it.
        self._last: dict[tuple[str, tuple[str, ...]], tuple[float, float]] = {}

    def since_the_beginning(self, found: list[Measurement], stats: LoaderStats) -> list[Measurement]:
        """The measurements of the statistics, with counters that never fall."""
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
