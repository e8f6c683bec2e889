"""Defines iterables with states, one of each common kind, which count the items that they read."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset

from kept_state import KeptState
from resumed import Walk
from resuming import Reads

reads = Reads()


class Plain(IterableDataset[Any]):
    """A dataset of numbers. A subclass overrides the method `numbers` or the function that turns numbers into items."""

    def __init__(self, size: int) -> None:
        self.size = size

    def shard(self) -> Sequence[int]:
        return range(self.size)

    def numbers(self) -> Sequence[int]:
        return self.shard()

    def item(self, number: int, *more: int) -> Any:
        reads.count += 1
        return (number, *more) if more else number

    def __iter__(self) -> Iterator[Any]:
        yield from map(self.item, self.numbers())


def shuffled(numbers: Sequence[int], seed: int) -> Sequence[int]:
    return random.Random(seed).sample(numbers, len(numbers))


class TakesOnce(Plain):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.position = self.start = 0

    def __iter__(self) -> Iterator[Any]:
        self.position, self.start = self.start, 0
        yield from self.rest()

    def rest(self) -> Iterator[Any]:
        numbers = self.numbers()
        while self.position < len(numbers):
            self.position += 1
            yield self.item(numbers[self.position - 1])

    def state_dict(self) -> Any:
        return {"position": self.position}

    def load_state_dict(self, state_dict: Any) -> None:
        self.start = state_dict["position"]


class CountsEpochs(KeptState, TakesOnce):
    kept = ("position", "epoch")

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        yield from self.rest()

    def begin(self) -> None:
        if not self.is_loaded:
            self.epoch, self.position = self.epoch + 1, 0
        self.is_loaded = False

    def numbers(self) -> Sequence[int]:
        return shuffled([1000 * self.epoch + number for number in self.shard()], self.epoch)


class CountsAtOnce(CountsEpochs):
    def __iter__(self) -> Iterator[Any]:
        self.begin()
        return self.rest()


class BeginsAgain(KeptState, TakesOnce):
    kept = ("position",)

    def __iter__(self) -> Iterator[Any]:
        yield from self.rest()
        self.position = 0


class Resumes(KeptState, TakesOnce):
    kept = ("position", "epoch")
    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        for number in self.numbers()[self.position :]:
            self.position += 1
            yield self.item(number, self.epoch)
        self.position, self.epoch = 0, self.epoch + 1


class TakesAgain(TakesOnce):
    """Starts every epoch, not only the first one, at the loaded position, as Hugging Face's streams do."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.loaded: Any = None
        self.has_begun = False

    def __iter__(self) -> Iterator[Any]:
        self.has_begun, self.position = True, 0 if self.loaded is None else self.loaded["position"]
        yield from self.rest()

    def state_dict(self) -> Any:
        return {"position": self.position} if self.has_begun else None

    def load_state_dict(self, state_dict: Any) -> None:
        self.loaded = state_dict


class ItsOwnIterator(Resumes):
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        numbers = self.numbers()
        if self.position >= len(numbers):
            self.position, self.epoch = 0, self.epoch + 1
            raise StopIteration
        self.position += 1
        return self.item(numbers[self.position - 1], self.epoch)


class LiveState(CountsEpochs):
    """A stream that modifies the state dicts that were returned or loaded before."""

    def __init__(self, size: int) -> None:
        self.live: dict[str, Any] = {"position": 0, "epoch": 0, "history": [[0]]}
        super().__init__(size)

    @property
    def position(self) -> Any:
        return self.live["position"]

    @position.setter
    def position(self, value: int) -> None:
        self.live["position"] = value
        self.live["history"][0][0] = value

    epoch = property(lambda self: self.live["epoch"], lambda self, value: self.live.update(epoch=value))

    def state_dict(self) -> Any:
        return self.live

    def load_state_dict(self, state_dict: Any) -> None:
        assert state_dict["history"] == [[state_dict["position"]]]
        self.live, self.is_loaded = state_dict, True


class Draws(CountsEpochs):
    kept = ("position", "before")

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.generator = random.Random(1)
        self.before: Any = self.generator.getstate()

    def begin(self) -> None:
        if self.is_loaded:
            self.generator.setstate(self.before)
        else:
            self.position = 0
        self.is_loaded, self.before = False, self.generator.getstate()
        self.order = list(range(self.size))
        self.generator.shuffle(self.order)

    def numbers(self) -> Sequence[int]:
        return self.order


class ItemsOf(Walk):
    def __init__(self, stream: Any) -> None:
        super().__init__(stream.numbers())
        self.stream = stream

    def __next__(self) -> Any:
        return self.stream.item(super().__next__())


class Walked(Plain):
    def __iter__(self) -> Iterator[Any]:
        return ItemsOf(self)


class WalkedInOrder(KeptState, Walked):
    kept = ("epoch",)
    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch, self.is_loaded = self.epoch + (not self.is_loaded), False
        return ItemsOf(self)

    def numbers(self) -> Sequence[int]:
        return shuffled(self.shard(), self.epoch)


class NeedsArguments(TakesOnce):
    def __iter__(self) -> Iterator[Any]:
        self.position = 0
        yield from self.rest()

    def state_dict(self, consumed: int) -> Any:  # type: ignore[override]
        raise AssertionError("the argument is unknown")

    def load_state_dict(self, state_dict: Any) -> None:
        raise AssertionError("the stream has no state")


RESUMING: list[Callable[[int], Any]] = [Resumes, ItsOwnIterator]
STATEFUL: list[Callable[[int], Any]] = [
    TakesOnce, CountsEpochs, CountsAtOnce, BeginsAgain, TakesAgain, LiveState, Draws, Walked, WalkedInOrder, *RESUMING
]  # fmt: skip
