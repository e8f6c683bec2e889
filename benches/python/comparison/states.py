"""Measures the cost of states: the slowdown of the running job, the time to save a state, its size, and the time to
resume.

Each case is a pipeline with two workers: plain items, a shuffle buffer of 18 MB, or dispatched items. For comparison,
torch-style loaders of this project and of upstream 0.11 read numbers by index, or a dataset with a state of 18 MB.
Upstream runs in a separate environment.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

#: The size of an item in the shuffle buffer in bytes, and the number of items in the buffer.
SIZE, HELD = 18_000, 1_000
#: The number of items in an epoch. Each run reads only a part of one epoch.
MANY = 10_000_000
STATES = 200


def text(number: int) -> bytes:
    return number.to_bytes(8, "little") * (SIZE // 8)


def same(item: Any) -> Any:
    """Returns the item. Pipelines call this function like a user's function."""
    return item


def pipe_of(case: str) -> Any:
    from torchdata.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(MANY))
    if case == "dispatched":
        return pipe.shuffle(buffer_size=1000).sharding_round_robin_dispatch().map(same)
    pipe = pipe.sharding_filter().map(same)
    if case == "large buffer":
        return pipe.map(text).shuffle(buffer_size=HELD).map(len)
    return pipe


def _loader(order: dict[str, Any]) -> Any:
    """Returns a loader that sends `snapshots` times the usual number of snapshots (no snapshots if it is 0)."""
    from torchdata._engine import snapshots
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService

    if often := order["options"].get("snapshots", 1):
        snapshots.SECONDS, snapshots.FACTOR = snapshots.SECONDS / often, snapshots.FACTOR / often
    else:
        snapshots.SECONDS = 1e9
    service = MultiProcessingReadingService(order["workers"], order["start_method"])
    loader = DataLoader2(pipe_of(order["item"]), reading_service=service)
    loader.seed(5)
    return loader


def _of_torchs_kind(order: dict[str, Any]) -> Any:
    from torch.utils.data import Dataset, IterableDataset

    from torchdata.stateful_dataloader import StatefulDataLoader

    class Numbers(Dataset[int]):
        def __len__(self) -> int:
            return MANY

        def __getitem__(self, index: int) -> int:
            return index

    class Weighty(IterableDataset[int]):
        def __init__(self) -> None:
            self.held, self.at = [text(number) for number in range(HELD)], 0

        def __iter__(self) -> Iterator[int]:
            while self.at < MANY:
                self.at += 1
                yield self.at

        def state_dict(self) -> dict[str, Any]:
            return {"held": self.held, "at": self.at}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.held, self.at = state["held"], state["at"]

    data: Any = Weighty() if order["item"] == "large buffer" else Numbers()
    return StatefulDataLoader(data, batch_size=16, num_workers=order["workers"])


def _built(order: dict[str, Any]) -> Any:
    return _loader(order) if order["contender"] == "ours" else _of_torchs_kind(order)


def state_rate(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    from comparison import measure

    loader = _loader(order)
    return {"value": measure.rate(iter(loader), measure.CONSUMERS["tiny"], order["seconds"])}, loader


def state_time(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    loader = _built(order)
    iterator = iter(loader)
    found = []
    until = time.perf_counter() + 20 * order["seconds"]
    while len(found) < STATES and (len(found) < 5 or time.perf_counter() < until):
        next(iterator)
        begin = time.perf_counter()
        loader.state_dict()
        found.append(time.perf_counter() - begin)
    return {"value": statistics.median(found)}, (loader, iterator)


def state_size(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    """Returns the size of a loader's state, after snapshots of the workers have arrived."""
    loader = _built(order)
    iterator = iter(loader)
    until = time.perf_counter() + order["seconds"]
    while time.perf_counter() < until:
        next(iterator)
    return {"value": len(pickle.dumps(loader.state_dict()))}, (loader, iterator)


def resume_time(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    """Returns the seconds from loading a state to the first item, minus the same time in a loader without a state."""
    count = order["options"]["items"] // (1 if order["contender"] == "ours" else 16)
    loader = _built(order)
    next(islice(iter(loader), count - 1, None))
    state = pickle.dumps(loader.state_dict())
    seconds = []
    for loaded in (None, state):
        loader = _built(order)
        begin = time.perf_counter()
        if loaded is not None:
            loader.load_state_dict(pickle.loads(loaded))
        iterator = iter(loader)
        next(iterator)
        seconds.append(time.perf_counter() - begin)
    return {"value": max(1e-4, seconds[1] - seconds[0])}, (loader, iterator)
