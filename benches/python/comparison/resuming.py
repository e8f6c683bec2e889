"""The time from a state to the next item, for sources that restore their positions: it must not grow with the position.

Role: a kind of measurement for `child`. A source is a stream with a state, or numbers that are read by index. The
loader is one of the three classes, with or without workers. A state's position is reached by reading up to it.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

#: The number of items in an epoch.
MANY = 10_000_000
#: The number of times that a state is loaded; the shortest time counts.
TIMES = 5


class Numbers:
    """Numbers that are read by index."""

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> int:
        return index


def _stream() -> Any:
    from torch.utils.data import IterableDataset

    class Stream(IterableDataset[int]):
        """A stream of numbers with a state."""

        def __init__(self) -> None:
            self.at = self.start = 0

        def __iter__(self) -> Iterator[int]:
            self.at, self.start = self.start, 0
            while self.at < MANY:
                self.at += 1
                yield self.at

        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.start = state["at"]

    return Stream()


def _built(order: dict[str, Any]) -> Any:
    options = order["options"]
    data, workers = _stream() if order["item"] == "stream" else Numbers(), options["workers"]
    if options["loader"] == "StatefulDataLoader":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(data, batch_size=None, num_workers=workers)
    if options["loader"] == "nodes":
        from torch.utils.data import SequentialSampler

        from torchdata import nodes

        sampler: Any = SequentialSampler(data) if order["item"] == "index" else None
        node: Any = nodes.MapStyleWrapper(data, sampler) if sampler else nodes.IterableWrapper(data)
        return nodes.Loader(nodes.ParallelMapper(node, int, workers) if workers else node)
    from torchdata.dataloader2 import DataLoader2

    return DataLoader2.from_dataset(data, num_workers=workers)


def resume_from(order: dict[str, Any]) -> tuple[dict[str, float], Any]:
    """Returns the seconds from a state after this number of items to the next item."""
    loader = _built(order)
    iterator = iter(loader)
    next(islice(iterator, order["options"]["items"] - 1, None))
    state = pickle.dumps(loader.state_dict())
    seconds = []
    for _ in range(TIMES):
        del iterator
        if hasattr(loader, "shutdown"):
            loader.shutdown()
        loader, loaded = _built(order), pickle.loads(state)
        begin = time.perf_counter()
        loader.load_state_dict(loaded)
        iterator = iter(loader)
        next(iterator)
        seconds.append(time.perf_counter() - begin)
    return {"value": min(seconds)}, (loader, iterator)
