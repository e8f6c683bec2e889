"""Advice for users, with the names of the arguments of each kind of loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchdata._observe.stats.model import NODES, STATEFUL

if TYPE_CHECKING:
    from torchdata._observe.stats.model import LoaderStats


@dataclass(frozen=True)
class Advice:
    workers: str
    full: str
    memory: str
    #: The advice for a loader with items that are too small.
    larger: str
    #: The advice if the work is divided unevenly among the workers.
    shares: str
    #: The advice for a loader with workers that start slowly.
    start: str


_START = 'multiprocessing_context="forkserver" or "fork" starts faster than "spawn"'
_OF_PIPES = Advice(
    workers="MultiProcessingReadingService({})",
    full='DataLoader2(…, stats="full")',
    memory="Keep fewer items, copy what you keep, or raise memory_budget of the reading service.",
    larger="larger items: put `.batch(…)` at the end of the workers' pipes.",
    shares="Divide single items (`.sharding_filter()` after the pipe that reads the files), make all shards equally "
    "large, or use sharding_round_robin_dispatch.",
    start=_START,
)
_OF_BATCHES = Advice(
    workers="num_workers={}",
    full='StatefulDataLoader(…, stats="full")',
    memory="Keep fewer batches, or copy what you keep.",
    larger="larger batches: raise batch_size.",
    shares="Have the iterable dataset divide single samples among the workers (get_worker_info), or make their shares "
    "equally large.",
    start=f"persistent_workers=True starts them once; {_START}",
)

_OF_NODES = Advice(
    workers="ParallelMapper(…, num_workers={})",
    full='Loader(…, stats="full")',
    memory="Keep fewer items, or copy what you keep.",
    larger="larger items: put a Batcher before the ParallelMapper.",
    shares="Divide single items among the processes.",
    start=_START,
)


def advice_for(stats: LoaderStats) -> Advice:
    return {STATEFUL: _OF_BATCHES, NODES: _OF_NODES}.get(stats.loader or "", _OF_PIPES)
