"""Collects the package's numeric limits.

    python -m limits_table               # in tests/python/support: prints the tables of docs/limits.md

Limits that depend on the machine are measured when the program runs."""

import argparse
import os
import pickle
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from torchdata import _machine as machine
from torchdata._engine.workers.group import default_budget
from torchdata._observe.stats.counting import PIPES
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.services import choosing
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.iter.archives import archive, tar
from torchdata.datapipes.iter.streams import tfrecords

MIB = 1 << 20


def of_the_code() -> list[tuple[str, str]]:
    service = MultiProcessingReadingService(2)
    return [
        (
            'workers that `num_workers="auto"` starts',
            f"the number of cores minus 1, but at least {choosing.LEAST} and at most {choosing.MOST}",
        ),
        (
            "items that are prefetched by default",
            f"{service.worker_prefetch_cnt} in each worker, plus {service.main_prefetch_cnt} in all workers together",
        ),
        ("pipes of a process that `stats()` lists", f"{PIPES}"),
        ("size of a TFRecord by default (`max_length`)", f"{tfrecords.MAX_LENGTH // MIB} MiB"),
        (
            "uncompressed size of a compressed file by default (`max_ratio`)",
            f"{archive.MAX_RATIO:.0f} times its compressed size",
        ),
        (
            "largest tar member that stays readable after the next member has been read",
            f"{tar.LARGEST_KEPT_MEMBER // MIB} MiB",
        ),
        ("headers of one tar member", f"{tar.MOST_HEADERS} headers, with {tar.LARGEST_HEADERS >> 10} KiB in total"),
    ]


def array(item: int, size: int) -> Any:
    return np.full(size, item, np.uint8)


@contextmanager
def loading(pipe: Any, workers: int, **options: Any) -> Iterator[DataLoader2[Any]]:
    service = MultiProcessingReadingService(workers, "fork", **options)
    with DataLoader2(pipe, reading_service=service) as loader:
        yield loader


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def held_for(workers: int) -> int:
    before = descriptors()
    with loading(IterableWrapper(range(4 * workers)).sharding_filter(), workers) as loader:
        next(iter(loader))
        return descriptors() - before


def descriptors_of_workers() -> str:
    few, many = held_for(2), held_for(12)
    each = (many - few) // 10
    return f"{each} per worker, plus {few - 2 * each}"


def state_of(workers: int, shuffle: bool = False) -> int:
    pipe = IterableWrapper(range(100_000))
    pipe = (pipe.shuffle() if shuffle else pipe).sharding_filter()
    with loading(pipe, workers) as loader:
        iterator = iter(loader)
        largest = 0
        for _ in range(20):
            for _ in range(4000):
                next(iterator)
            largest = max(largest, len(pickle.dumps(loader.state_dict())))
        return largest


def sizes_of_states(shuffle: bool) -> str:
    return ", ".join(f"{state_of(workers, shuffle):,} with {workers} workers" for workers in (2, 8))


def large_item(size: int) -> str:
    pipe = IterableWrapper(range(1)).sharding_filter().map(partial(array, size=size))
    with loading(pipe, 1, memory_budget=64 * MIB) as loader:
        (item,) = loader
        return f"{item.nbytes / (1 << 30):.3g} GiB, in {loader.stats().fragments:,} fragments"


def many_workers(count: int) -> str:
    with loading(IterableWrapper(range(count)).sharding_filter(), count) as loader:
        return f"{count}, which yielded all {len(list(loader))} items"


def budget() -> str:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with loading(IterableWrapper(range(9)).sharding_filter(), 2) as loader:
        list(loader)
        limit = loader.stats().shared_memory_limit
    share = f"{default_budget() / whole:.0%} of the machine's {whole / (1 << 30):.1f} GiB"
    return f"{share}, which is {limit / 2 / MIB:,.0f} MiB for each of 2 workers"


def measured(size: int, workers: int) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "open file descriptors in the main process (Linux)", descriptors_of_workers
    yield "shared memory by default", budget
    yield "largest item sent with `memory_budget=64 MiB`", partial(large_item, size)
    yield "largest number of workers tried in one loader", partial(many_workers, workers)
    yield "bytes of the largest of 20 pickled states", partial(sizes_of_states, False)
    yield "the same with a `.shuffle()` buffer of 10,000 items", partial(sizes_of_states, True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2 << 30, help="bytes of the large item")
    parser.add_argument("--workers", type=int, default=256, help="the number of workers to start")
    options = parser.parse_args()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    print(f"{machine.cores()} cores, {memory:.0f} GiB, CPython {platform.python_version()}, {platform.machine()}\n")
    print("| limit | in the code |", "| --- | --- |", sep="\n")
    for name, value in of_the_code():
        print(f"| {name} | {value} |")
    print("\n| measured | |", "| --- | --- |", sep="\n")
    for name, measure in measured(options.size, options.workers):
        print(f"| {name} | {measure()} |", flush=True)


if __name__ == "__main__":
    main()
