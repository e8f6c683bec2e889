"""What `num_workers="auto"` chooses for ten pipelines, and how far that is from the best number by hand.

    python -m auto_table                          # in tests/python/support: all of them, each number from 0 to 8
    python -m auto_table --only sleep --most 4    # one of them

Prints a table, which the guide (docs/guides/workers.md) sums up. The fastest of some epochs counts, for each number and
for what was chosen, because other programs make epochs slower and never faster. `noise` is how far these epochs are
apart, at the best number.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe

#: Epochs that are timed, and those after which "auto" is asked at the latest.
TIMED, PATIENCE = 3, 16


@dataclass(frozen=True)
class Trial:
    """A pipeline whose workers are to be chosen.

    Args:
        name: what it is, for the table.
        make: makes it.
        step: seconds of a training step, in which the program waits.
        block: items of a block that the filter deals out.
        memory: `memory_budget` of the reading service.
        computes: whether its work needs the cores. Then other programs take their share of these, so that an epoch
            is as long as the processor time that it needs, by as many cores as its processes can use.
    """

    name: str
    make: Callable[[], Any]
    step: float = 0.0
    block: int | None = None
    memory: int | None = None
    computes: bool = False


def wait(item: Any, seconds: float) -> Any:
    time.sleep(seconds)
    return item


def request(item: int) -> int:
    """Waits as for a server: mostly for 4 ms, and for one item in sixteen for 30."""
    time.sleep(0.03 if item * 2654435761 % 16 == 0 else 0.004)
    return item


def compute(item: Any) -> Any:
    for _ in range(8):
        hashlib.sha256(bytes(1 << 20)).digest()
    return item


def skewed(item: int) -> int:
    time.sleep(0.02 if item % 7 == 0 else 0.002)
    return item


def image(item: int) -> Any:
    time.sleep(0.01)
    return np.full(2_000_000, item % 256, np.uint8)


class Reader(IterDataPipe[int]):
    """A source that takes 2 ms for each item."""

    def __iter__(self) -> Iterator[int]:
        return map(partial(wait, seconds=0.002), range(300))


def items(count: int) -> Any:
    return IterableWrapper(range(count)).shuffle().sharding_filter()


TRIALS = {
    "sleep": Trial("each item waits 10 ms", lambda: items(300).map(partial(wait, seconds=0.01))),
    "network": Trial("requests: 4 ms, some 30; a step of 1 ms", lambda: items(300).map(request), step=0.001),
    "compute": Trial("each item computes (by processor time)", lambda: items(120).map(compute), computes=True),
    "tiny": Trial("tiny items", lambda: items(200_000).map(abs)),
    "reader": Trial("the source takes 2 ms an item", lambda: Reader().sharding_filter().map(abs)),
    "consumer": Trial(
        "a step of 10 ms, items of 2 ms", lambda: items(100).map(partial(wait, seconds=0.002)), step=0.01
    ),
    "batches": Trial(
        "items of 5 ms in batches of 4, ShardingPolicy(4)",
        lambda: items(480).map(partial(wait, seconds=0.005)).batch(4),
        block=4,
    ),
    "skewed": Trial("one item in seven takes ten times as long", lambda: items(420).map(skewed)),
    "memory": Trial("2 MB items of 10 ms, a budget of 128 MiB", lambda: items(200).map(image), memory=128 << 20),
    "threads": Trial(
        "4 threads in each worker, items of 20 ms",
        lambda: items(400).threadpool_map(partial(wait, seconds=0.02), max_workers=4),
    ),
}


def load(trial: Trial, workers: Any) -> DataLoader2[Any]:
    service = None
    if workers:
        service = MultiProcessingReadingService(workers, "fork", memory_budget=trial.memory)
    return DataLoader2(trial.make(), ShardingPolicy(trial.block), service)


def seconds_of(loader: DataLoader2[Any], trial: Trial) -> float:
    """How long an epoch takes."""
    begun, earlier, own = time.perf_counter(), loader.stats(), time.process_time()
    for _ in loader:
        if trial.step:
            time.sleep(trial.step)
    if not trial.computes:
        return time.perf_counter() - begun
    stats = loader.stats(since=earlier)
    ran = time.process_time() - own + sum(worker.cpu_seconds or 0.0 for worker in stats.workers)
    return ran / min(max(1, len(stats.workers)), stats.cores)


def by_hand(trial: Trial, workers: int) -> list[float]:
    """The seconds of some epochs in so many workers, but for the first one, which starts them."""
    with load(trial, workers) as loader:
        return [seconds_of(loader, trial) for _ in range(1 + TIMED)][1:]


def by_itself(trial: Trial) -> tuple[int, list[float]]:
    """How many workers were chosen, and the seconds of some epochs in these."""
    with load(trial, "auto") as loader, contextlib.redirect_stderr(io.StringIO()):
        for _ in range(PATIENCE):
            seconds_of(loader, trial)
            if not loader.reading_service._steering.workers:
                break
        return loader.reading_service.num_workers, [seconds_of(loader, trial) for _ in range(TIMED)]


def row(trial: Trial, most: int) -> str:
    """A row of the table."""
    hand = {workers: by_hand(trial, workers) for workers in range(most + 1)}
    chosen, took = by_itself(trial)
    best = min(hand, key=lambda workers: min(hand[workers]))
    for workers in (best, chosen):  # not to compare what was measured at different times alone
        hand[workers] = hand.get(workers, []) + by_hand(trial, workers)
    took += hand[chosen]
    fastest = min(hand[best])
    share = (min(took) / fastest - 1) * 100
    noise = (max(hand[best]) / fastest - 1) * 100
    behind = f"{share:.0f} % slower" if share >= 0 else f"{-share:.0f} % faster"
    told = " ".join(f"{workers}:{min(times):.3f}" for workers, times in hand.items())
    print(f"<!-- {trial.name}: {told}; auto {chosen}: {min(took):.3f} -->", flush=True)
    return f"| {trial.name} | {best} | {chosen} | {behind} | {noise:.0f} % |"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=TRIALS, action="append", help="which of them; may be given more than once")
    parser.add_argument("--most", type=int, default=8, help="the largest number tried by hand")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [row(TRIALS[name], options.most) for name in options.only or TRIALS]
    print(
        "| pipeline | best by hand | auto | an epoch of auto's | noise |", "| --- | --- | --- | --- | --- |", sep="\n"
    )
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
