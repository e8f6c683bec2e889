"""Converts a loader's statistics to measurements for exporters, by the naming rules of Prometheus."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchdata._observe.stats.declaring import Family, families_of
from torchdata._observe.stats.model import LoaderStats, PipeStats, ProcessStats


@dataclass(frozen=True)
class Measurement:
    family: Family
    labels: tuple[str, ...]
    value: float


_OF_LOADER = families_of(LoaderStats)
_OF_PROCESS = families_of(ProcessStats, "process_", ["process"])
_OF_PIPE = families_of(PipeStats, "pipe_", ["process", "pipe"])
FAMILIES: tuple[Family, ...] = (*_OF_LOADER.values(), *_OF_PROCESS.values(), *_OF_PIPE.values())


def rank_of(loader: Any) -> int:
    """Returns the rank from the reading service, the distributed job or the environment; by default 0."""
    pipeline = getattr(loader, "_pipeline", None)
    ranks = None if pipeline is None else pipeline.contract.rank_in_epoch()
    if ranks is not None:
        return int(ranks.rank)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0


class Measuring:
    """Measures a loader repeatedly.

    Gauges are computed over the time since the last measurement. Counters never decrease, because readers of metrics
    interpret a decrease as a restart. The values from `loader.stats()` may decrease, because times are estimates, and
    the times of a replaced worker start at zero.

    Args:
        rank: the value of the label `rank` in all measurements; by default (None), the loader's rank.
    """

    def __init__(self, loader: Any, rank: int | None = None) -> None:
        if not callable(getattr(loader, "stats", None)):
            raise TypeError(f"metrics can only be read from a loader with `stats()`, but got {loader!r}")
        self._loader = loader
        self._rank = rank
        self._last: LoaderStats | None = None
        self._pids: dict[str, int] = {}
        self._totals: dict[tuple[str, tuple[str, ...]], tuple[float, float]] = {}

    @property
    def rank(self) -> str:
        return str(rank_of(self._loader) if self._rank is None else self._rank)

    def measure(self) -> list[Measurement]:
        whole: LoaderStats = self._loader.stats()
        recent = whole if self._last is None else self._loader.stats(self._last)
        self._last, found = whole, []
        for name, family in _OF_LOADER.items():
            value = getattr(whole if family.kind == "counter" else recent, name)
            if value is not None:
                found.append(Measurement(family, (), float(value)))
        for process in whole.processes:
            found += _of_process(process)
        pids = {process.name: process.pid for process in whole.processes}
        replaced = {name for name, pid in pids.items() if self._pids.get(name, pid) != pid}
        self._pids.update(pids)
        return [self._grown(one, replaced) if one.family.kind == "counter" else one for one in found]

    def _grown(self, one: Measurement, replaced: set[str]) -> Measurement:
        """Replaces a counter's value by the sum of its increases, which never decreases, even if a process was
        replaced."""
        key = one.family.name, one.labels
        number, total = self._totals.get(key, (0.0, 0.0))
        of_system = one.family is _OF_PROCESS["cpu_seconds"]
        if one.labels and one.labels[0] in replaced and (of_system or one.value < number):
            number = 0.0
        total += max(0.0, one.value - number)
        self._totals[key] = max(number, one.value), total
        return replace(one, value=total)


def _measured(stats: Any, families: dict[str, Family], *labels: str) -> Iterator[Measurement]:
    for name, family in families.items():
        if (value := getattr(stats, name)) is not None:
            yield Measurement(family, labels, float(value))


def _of_process(process: ProcessStats) -> Iterator[Measurement]:
    yield from _measured(process, _OF_PROCESS, process.name)
    seen: dict[str, int] = {}
    for pipe in process.pipes:
        seen[pipe.name] = seen.get(pipe.name, 0) + 1
        called = pipe.name if seen[pipe.name] == 1 else f"{pipe.name} {seen[pipe.name]}"
        yield from _measured(pipe, _OF_PIPE, process.name, called)
