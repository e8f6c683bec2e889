"""Provides the sources of random graphs: samplers, streams with and without states, and nodes."""

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

from node_sources import Positions
from node_streams import CountsAtOnce, CountsEpochs, Stateless, TakesAgain, TakesOnce
from torchdata.nodes import BaseNode


class Shuffled(Sampler[int]):
    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.size))
        random.Random(self.epoch).shuffle(order)
        return iter(order)


class Counting(BaseNode[int]):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.left = size, size

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self.left = self.size if initial_state is None else initial_state["left"]

    def next(self) -> int:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return self.left

    def get_state(self) -> dict[str, Any]:
        return {"left": self.left}


class First(BaseNode[Any]):
    """Limits the number of items as the node `Header` does, but also works in torchdata 0.11, which lacks `Header`."""

    def __init__(self, source: BaseNode[Any], count: int) -> None:
        super().__init__()
        self.source, self.count, self.left = source, count, count

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        self.left = self.count if initial_state is None else initial_state["left"]
        self.source.reset(None if initial_state is None else initial_state["source"])

    def next(self) -> Any:
        if self.left == 0:
            raise StopIteration
        item = next(self.source)
        self.left -= 1
        return item

    def get_state(self) -> dict[str, Any]:
        return {"left": self.left, "source": self.source.state_dict()}


STREAMS: dict[str, Any] = {
    cls.__name__: cls for cls in (Stateless, Positions, TakesOnce, TakesAgain, CountsAtOnce, CountsEpochs)
}
