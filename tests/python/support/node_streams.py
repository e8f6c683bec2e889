"""Streams of each common kind for tests of nodes, and a function that reads epochs according to a plan."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from streams_of_users import CountsAtOnce, CountsEpochs, Draws, TakesAgain, TakesOnce
from torchdata.nodes import BaseNode, Loader


class Stateless:
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


class GoesOn:
    """A stream that begins each iteration at the position where the last iteration was left, and counts complete
    iterations.
    """

    def __init__(self, size: int) -> None:
        self.size, self.place, self.epoch = size, 0, 0

    def __iter__(self) -> Iterator[Any]:
        while self.place < self.size:
            self.place += 1
            yield self.epoch, self.place
        self.place, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.epoch = state["place"], state["epoch"]


class Itself(GoesOn):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.place == self.size:
            self.place, self.epoch = 0, self.epoch + 1
            raise StopIteration
        self.place += 1
        return self.epoch, self.place


STREAMS: list[Callable[[int], Any]] = [TakesOnce, CountsEpochs, CountsAtOnce, TakesAgain, Draws, Stateless]
#: Streams that begin their next iteration where the last iteration was left.
GOING_ON: list[Callable[[int], Any]] = [GoesOn, Itself]


class Uncheckpointed(BaseNode[int]):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if initial_state is not None:
            raise NotImplementedError("no states here")
        self.place = 0

    def next(self) -> int:
        if self.place == self.size:
            raise StopIteration
        self.place += 1
        return self.place - 1

    def get_state(self) -> dict[str, Any]:
        raise NotImplementedError("no states here")


#: A plan: for each epoch, the number of items to read, or None for all items.
Plan = Sequence[int | None]


def run(loader: Loader[Any], plan: Plan, save_at: tuple[int, int] | None = None) -> tuple[list[list[Any]], bytes]:
    """Reads epochs according to a plan. Returns the items of each epoch, and the pickled state that was saved at the
    position `save_at`.

    `save_at` is the number of an epoch, and the number of items before the state is saved. The end of the epoch counts
    as one item.
    """
    epochs: list[list[Any]] = []
    state = b""
    for epoch, most in enumerate(plan):
        items: list[Any] = []
        epochs.append(items)
        iterator = iter(loader)
        while True:
            if save_at == (epoch, len(items)):
                state = pickle.dumps(loader.state_dict())
            if most is not None and len(items) >= most:
                break
            item = next(iterator, None)
            if item is None:
                break
            items.append(item)
        if save_at == (epoch, len(items) + 1):
            state = pickle.dumps(loader.state_dict())
    return epochs, state
