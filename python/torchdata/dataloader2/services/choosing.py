"""Chooses the number of workers for `num_workers="auto"`."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from torchdata import _machine as machine
from torchdata._importing import import_whole
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes.iter.ordering.sharding import SHARDING_PRIORITIES, ShardingFilter
from torchdata.datapipes.iter.threads.synchronizing import FullSync

LEAST, MOST = 2, 16


@dataclass(frozen=True)
class WorkerChoice:
    number: int
    line: str


def choose_workers() -> WorkerChoice:
    cores = machine.cores()
    number, reason = cores - 1, "and one core is left for the main process"
    if number < LEAST:
        number, reason = LEAST, f"and at least {LEAST} workers are started"
    elif number > MOST:
        number, reason = MOST, f"and at most {MOST} workers are started"
    return WorkerChoice(number, f'num_workers="auto": {number} workers: this process may use {cores} cores, {reason}')


def refuse_ranks(graph: Graph) -> None:
    """Raises ValueError if ranks share the items, because all ranks need the same number of workers, but each rank
    might choose a different number.
    """
    for pipe in graph:
        if isinstance(pipe, FullSync) or _is_shared_by_ranks(pipe):
            raise ValueError(
                'num_workers="auto" chooses by the cores of one machine, but all ranks of a distributed job need the '
                "same number of workers: give num_workers a number"
            )


def _is_shared_by_ranks(pipe: object) -> bool:
    return isinstance(pipe, ShardingFilter) and any(
        group != SHARDING_PRIORITIES.MULTIPROCESSING and instances > 1 for group, (instances, _) in pipe.groups.items()
    )


def log(line: str) -> None:
    """Logs a line, or prints it to stderr if logging is not set up."""
    logger = import_whole("logging").getLogger("torchdata")
    if logger.hasHandlers():
        logger.info("%s", line)
    else:
        print(f"torchdata: {line}", file=sys.stderr, flush=True)
