"""Provides sources and functions for tests of nodes."""

from collections.abc import Iterator
from typing import Any

from torchdata.nodes import BaseNode, IterableWrapper, StopCriteria

CRITERIA = sorted(value for name, value in vars(StopCriteria).items() if name.isupper())


def same(item: Any) -> Any:
    return item


def numbers(count: int) -> IterableWrapper[int]:
    return IterableWrapper(range(count))


def fails_at_three(number: int) -> int:
    if number == 3:
        raise KeyError("three")
    return number


def at_odds(number: int) -> int:
    if number == 2:
        raise ValueError("two")
    return 10 * number


def outcomes(node: BaseNode[Any]) -> list[Any]:
    found: list[Any] = []
    while len(found) < 50:
        try:
            found.append(next(node))
        except StopIteration:
            break
        except Exception as error:
            found.append(str(error))
    return found


class Epochs:
    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(self.epoch, number) for number in range(self.size)])


class Positions:
    """A stream with a position. An iteration begins at the loaded position, or at 0 if no state was loaded."""

    def __init__(self, size: int) -> None:
        self.size, self.position, self.begun, self.loaded = size, 0, 0, False

    def __iter__(self) -> Iterator[int]:
        if not self.loaded:
            self.position = 0
        self.loaded = False
        return self.rest()

    def rest(self) -> Iterator[int]:
        self.begun += self.position == 0
        while self.position < self.size:
            self.position += 1
            yield self.position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.position, self.loaded = state_dict["position"], True
