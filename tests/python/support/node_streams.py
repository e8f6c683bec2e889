"""Streams with states, one of each common kind, and a function that runs a plan of whole and abandoned epochs."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchdata.nodes import BaseNode, Loader


class TakesOnce:
    """Applies a loaded position once, in the first line of its generator. The next iteration starts over."""

    def __init__(self, size: int) -> None:
        self.size, self.place, self.start = size, 0, 0

    def __iter__(self) -> Iterator[int]:
        self.place, self.start = self.start, 0
        while self.place < self.size:
            self.place += 1
            yield self.place - 1

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.start = state_dict["place"]


class CountsEpochs:
    """Counts its epochs in the first line of its generator, and shuffles by their number."""

    def __init__(self, size: int) -> None:
        self.size, self.place, self.epoch, self.loaded = size, 0, 0, False

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        yield from self.rest()

    def begin(self) -> None:
        if not self.loaded:
            self.epoch, self.place = self.epoch + 1, 0
        self.loaded = False

    def rest(self) -> Iterator[Any]:
        order = list(range(self.size))
        random.Random(self.epoch).shuffle(order)
        while self.place < self.size:
            self.place += 1
            yield self.epoch, order[self.place - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.place, self.epoch, self.loaded = state_dict["place"], state_dict["epoch"], True


class CountsAtOnce(CountsEpochs):
    """The same, but counts when `iter()` is called."""

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        return self.rest()


class TakesAgain(TakesOnce):
    """Applies a loaded position in each later iteration, like streams of Hugging Face. Has no state before the first
    one.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.now: dict[str, Any] | None = None
        self.loaded: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[int]:
        self.now = {"place": 0} if self.loaded is None else dict(self.loaded)
        while self.now["place"] < self.size:
            self.now["place"] += 1
            yield self.now["place"] - 1

    def state_dict(self) -> Any:
        return None if self.now is None else dict(self.now)

    def load_state_dict(self, state_dict: Any) -> None:
        self.loaded = state_dict


class Draws:
    """Draws its order from a generator. Its state contains the generator's state before the epoch."""

    def __init__(self, size: int) -> None:
        self.size, self.place, self.loaded = size, 0, False
        self.generator = random.Random(1)
        self.before = self.generator.getstate()

    def __iter__(self) -> Iterator[int]:
        if self.loaded:
            self.generator.setstate(self.before)
        else:
            self.place = 0
        self.loaded, self.before = False, self.generator.getstate()
        order = list(range(self.size))
        self.generator.shuffle(order)
        while self.place < self.size:
            self.place += 1
            yield order[self.place - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "before": self.before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.place, self.before, self.loaded = state_dict["place"], state_dict["before"], True


class Stateless:
    """Has no state."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


class GoesOn:
    """Continues in the next iteration where the last one was left, and counts finished iterations."""

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
    """The same, as its own iterator."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.place == self.size:
            self.place, self.epoch = 0, self.epoch + 1
            raise StopIteration
        self.place += 1
        return self.epoch, self.place


STREAMS: list[Callable[[int], Any]] = [TakesOnce, CountsEpochs, CountsAtOnce, TakesAgain, Draws, Stateless]
#: Streams whose next iteration begins where the last one was left.
GOING_ON: list[Callable[[int], Any]] = [GoesOn, Itself]


class Uncheckpointed(BaseNode[int]):
    """A node without states."""

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


#: The number of items to read in each epoch; None for all.
Plan = Sequence[int | None]


def run(loader: Loader[Any], plan: Plan, save_at: tuple[int, int] | None = None) -> tuple[list[list[Any]], bytes]:
    """Reads epochs according to a plan. Returns their items, and the pickled state at an epoch and a number of items.

    One more than the number of items of an epoch means its end.
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
