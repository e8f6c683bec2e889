"""Simulates loaders that are slow for a known cause, and computes the counters of their processes."""

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from torchdata._observe.stats.labels import Flag
from torchdata._observe.stats.model import STATEFUL, LoaderStats, Page, Reading
from torchdata._observe.stats.reading import summarise

__all__ = ["CAUSES", "Cause", "Door", "stats_of"]

Door = Literal["StatefulDataLoader", "DataLoader2"]
MS = 1_000_000
READS = "Photos.__getitem__", "train.py:12"
COLLATES = {"StatefulDataLoader": "pad", "DataLoader2": "Mapper(pad)"}


@dataclass
class Cause:
    """A simulated cause of slow loading, with times in milliseconds per batch and sizes in bytes."""

    kind: str
    culprit: str | None = None
    workers: int = 4
    batches: int = 200
    reads: float = 1.0
    collates: float = 0.1
    sends: float = 0.05
    computes: float = 0.05
    queued: float = 0.0
    arrives: float = 0.0
    in_main: float = 0.05
    step: float = 1.0
    first: float = 50.0
    factors: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    size: int = 1000
    copied: int = 0
    stalled: float = 0.0
    words: dict[str, str] = field(default_factory=dict)
    cores: int = 8


def slow(**changes: Any) -> Cause:
    return Cause("loading", "reads", **{"reads": 80.0, **changes})


WORKERS = {"StatefulDataLoader": "num_workers=", "DataLoader2": "MultiProcessingReadingService("}
CAUSES: dict[str, Cause] = {
    "decoding computes": slow(computes=0.95),
    "augmentation computes in few workers": slow(computes=0.95, workers=1),
    "the disk is slow": slow(computes=0.02),
    "the page cache is cold": slow(reads=200.0, computes=0.03),
    "the network is slow": slow(computes=0.01, reads=300.0),
    "requests are retried": slow(computes=0.01, reads=900.0, batches=60),
    "workers wait for one lock": slow(reads=120.0, computes=0.01),
    "a database answers late": slow(reads=45.0, computes=0.05),
    "the machine swaps": slow(reads=400.0, computes=0.04, batches=50),
    "the interpreter's lock is fought over": slow(reads=90.0, computes=0.6),
    "too few workers": slow(reads=9.0, workers=1, step=4.0, computes=0.9),
    "no workers": slow(reads=20.0, workers=0, computes=0.9, words=WORKERS),
    "no workers, and the disk is slow": slow(reads=20.0, workers=0, computes=0.05, words=WORKERS),
    "no workers, and collating is slow": Cause("loading", "collates", 0, collates=20.0, words=WORKERS),
    "collating pads long sequences": Cause("loading", "collates", collates=60.0, computes=0.9),
    "collating opens files": Cause("loading", "collates", collates=60.0, computes=0.05),
    "the main process trains": Cause("training", reads=2.0, step=40.0, words={"": "the step between two items"}),
    "the main process evaluates, without workers": Cause("training", workers=0, reads=0.5, step=40.0),
    "there are too many workers for the step": Cause(
        "training", workers=16, reads=4.0, step=30.0, words={"": "fewer workers are enough"}
    ),
    "too many workers compete for cores": Cause("cores", workers=16, reads=80.0, computes=1.0, queued=3.0, cores=4),
    "each worker runs many threads": Cause(
        "cores", workers=4, reads=80.0, computes=4.0, queued=2.0, cores=4, words={"": "OMP_NUM_THREADS=1"}
    ),
    "one worker is slower than the others": Cause(
        "slow worker",
        "reads",
        reads=20.0,
        factors=(1, 1, 5, 1),
        words={"": "worker process 2", "DataLoader2": "in_order=False"},
    ),
    "one worker has most of the data": Cause(
        "skewed shard",
        reads=20.0,
        shares=(6, 1, 1, 1),
        words={"StatefulDataLoader": "get_worker_info", "DataLoader2": "sharding_round_robin_dispatch"},
    ),
    "objects are pickled for long": Cause("packing", reads=2.0, sends=60.0, computes=0.95),
    "batches are tiny": Cause(
        "sending",
        batches=20_000,
        workers=2,
        reads=0.001,
        collates=0.001,
        sends=0.0,
        arrives=0.02,
        in_main=0.0,
        step=0.001,
        words={"StatefulDataLoader": "batch_size", "DataLoader2": ".batch(…)"},
    ),
    "the program keeps its batches": Cause(
        "memory",
        reads=10.0,
        size=10 << 20,
        copied=6 << 20,
        words={"StatefulDataLoader": "Keep fewer batches, or copy", "DataLoader2": "memory_budget"},
    ),
    "the first batch opens everything": Cause("first item", "reads", first=30_000.0, reads=2.0, batches=100),
    "workers start slowly": Cause(
        "first item",
        "reads",
        first=9_000.0,
        reads=2.0,
        batches=100,
        words={"StatefulDataLoader": "persistent_workers=True", "DataLoader2": "multiprocessing_context"},
    ),
    "a worker hangs": Cause("stalled", stalled=60.0, words={"": "main has waited 60 s for worker process 0"}),
    "the dataset is empty": Cause("empty", "reads", batches=0),
    "the epoch has just begun": Cause("too early", batches=4),
}


def stats_of(cause: Cause, door: Door) -> LoaderStats:
    from dataclasses import replace

    epoch = _Epoch(cause)
    pages = [_main(cause, door, epoch), *(_worker(cause, door, epoch, number) for number in range(cause.workers))]
    cpu = {page["page"]: _cpu(cause, epoch, page["page"] - 1) for page in pages}
    alive = frozenset(page["page"] for page in pages)
    return replace(summarise(Reading(epoch.now, True, dict(enumerate(pages)), cpu, alive)), cores=cause.cores)


class _Epoch:
    def __init__(self, cause: Cause) -> None:
        count = max(1, cause.workers)
        factors = cause.factors or (1.0,) * count
        shares = cause.shares or (1.0,) * count
        own = cause.reads + cause.collates + (cause.sends if cause.workers else 0.0)
        self.batches = [round(cause.batches * share / sum(shares)) for share in shares]
        waiting = 1.0 + min(1.0, cause.computes) * cause.queued
        self.busy = [own * waiting * factor * MS * n for factor, n in zip(factors, self.batches, strict=True)]
        self.factors, self.waiting = factors, waiting
        main = cause.in_main + cause.step + (0.0 if cause.workers else own)
        self.seconds = max([max(main, cause.arrives) * MS * cause.batches, *(self.busy if cause.workers else [])])
        self.main_waits = max(0.0, self.seconds - main * MS * cause.batches) if cause.workers else 0.0
        self.inside = self.main_waits + (cause.in_main + (0.0 if cause.workers else own)) * MS * cause.batches
        self.now = int(self.seconds + cause.stalled * 1e9 + 1e12)


def _wait(total: float, count: int = 1, since: int = 0) -> dict[str, int]:
    return {"count": count, "since": since, "total": int(total), "whom": 0}


def _page(number: int, role: int, pipes: list[Page], flows: list[Page], seconds: float, **more: Any) -> Page:
    nothing = dict.fromkeys(("carried", "current", "arrived", "inside", "inside_samples"), 0)
    nothing |= dict.fromkeys(("lived", "ran", "queued", "restarts", "signal", "snapshots", "stack", "began"), 0)
    waits = {"first": _wait(0, 0), "idle": _wait(0, 0), "span": _wait(seconds)}
    about = {"page": number, "role": role, "number": max(0, number - 1), "pid": os.getpid(), "machine": ""}
    return {**nothing, **waits, **about, "exited": False, "epoch": 1, "pipes": pipes, "flows": flows, **more}


def _pipe(name: str, location: str = "", items: int = 0, own: float | None = None, **more: Any) -> Page:
    nothing: Page = {"capacity": 0, "flags": 0, "retries": 0, "skipped": 0, "skipped_kinds": [], "quantiles": None}
    about = {"label": name, "location": location, "items": items, "yielded": items, "reader": None}
    return {**nothing, **about, "own": int(own or 0), "samples": 0 if own is None else max(items, 1), **more}


def _flow(peer: int, sends: bool, items: int, size: int = 0, wait: Any = None, **more: Any) -> Page:
    nothing = dict.fromkeys(("arena_used", "arena_peak", "copied", "copies", "fragments", "wakes"), 0)
    about = {"peer": peer, "sends": sends, "items": items, "bytes": size, "window": 4, "arena_capacity": 4 << 30}
    return {**nothing, **about, "wait": wait or _wait(0, 0), **more}


def _stages(cause: Cause, door: Door, batches: int, factor: float, last: Page | None) -> list[Page]:
    reads = _pipe(*READS, 4 * batches, cause.reads * factor * batches * MS, reader=1)
    pads = _pipe(COLLATES[door], "train.py:30", batches, cause.collates * factor * batches * MS)
    if door == "DataLoader2":
        little = [_pipe(name, "", 4 * batches, 1000.0 * batches, reader=2 + n) for n, name in enumerate(_OURS)]
        stages = [{**reads, "flags": int(Flag.PUT_OFF)}, *little, pads]
        stages[1]["flags"] = int(Flag.PUT_OFF)
    else:
        stages = [reads, pads]
    if last is not None:
        pads["reader"] = len(stages)
        stages.append(last)
    return stages


_OURS = ("Shuffler", "ShardingFilter", "Batcher")


def _main(cause: Cause, door: Door, epoch: _Epoch) -> Page:
    last = _pipe(STATEFUL, "", cause.batches) if door == "StatefulDataLoader" else None
    more: dict[str, Any] = {"first": _wait(cause.first * MS), "inside": int(epoch.inside)}
    more["inside_samples"] = cause.batches
    if not cause.workers:
        return _page(0, 1, _stages(cause, door, cause.batches, 1.0, last), [], epoch.seconds, **more)
    if last is None:
        last = _pipe("the worker processes", "", cause.batches, epoch.main_waits, flags=int(Flag.INPUT))
    slowest = max(range(cause.workers), key=lambda worker: epoch.busy[worker])
    even = max(epoch.busy) < 1.01 * min(epoch.busy)
    flows = []
    for worker in range(cause.workers):
        share = 1 / cause.workers if even else float(worker == slowest)
        since = epoch.now - int(cause.stalled * 1e9) if cause.stalled and worker == 0 else 0
        wait = _wait(epoch.main_waits * share, cause.batches, since)
        flows.append(_flow(1 + worker, False, epoch.batches[worker], wait=wait))
    return _page(0, 1, [last], flows, epoch.seconds, **more)


def _worker(cause: Cause, door: Door, epoch: _Epoch, number: int) -> Page:
    batches, busy = epoch.batches[number], epoch.busy[number]
    factor = epoch.factors[number] * epoch.waiting
    seconds = busy if cause.shares else max(busy, epoch.seconds)
    size = {"copies": batches if cause.copied else 0, "copied": cause.copied * batches}
    room = _wait(seconds - busy, batches)
    flow = _flow(0, True, batches, cause.size * batches, room, **size)
    return _page(1 + number, 2, _stages(cause, door, batches, factor, None), [flow], seconds)


def _cpu(cause: Cause, epoch: _Epoch, worker: int) -> tuple[float, float, float]:
    lived = (epoch.seconds + cause.first * MS) / 1e9
    if worker < 0:
        own = 0.0 if cause.workers else epoch.busy[0] * cause.computes
        return (own + cause.in_main * MS * cause.batches) / 1e9, 0.0, lived
    ran = epoch.busy[worker] / epoch.waiting * cause.computes / 1e9
    return ran, ran * cause.queued, lived
