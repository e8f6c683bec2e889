"""Provides iterables with and without a state for tests of nodes, and checks that loaders of nodes resume exactly."""

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from streams_of_users import RESUMING, CountsAtOnce, CountsEpochs, Draws, TakesAgain, TakesOnce  # noqa: F401
from torchdata.nodes import BaseNode, Loader


class Stateless:
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


STREAMS: list[Callable[[int], Any]] = [TakesOnce, CountsEpochs, CountsAtOnce, TakesAgain, Draws, Stateless]


class Uncheckpointed(BaseNode[int]):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        if initial_state is not None:
            raise NotImplementedError("no states here")
        self.position = 0

    def next(self) -> int:
        if self.position == self.size:
            raise StopIteration
        self.position += 1
        return self.position - 1

    def get_state(self) -> dict[str, Any]:
        raise NotImplementedError("no states here")


Plan = Sequence[int | None]


def run(loader: Loader[Any], plan: Plan, save_at: tuple[int, int] | None = None) -> tuple[list[list[Any]], bytes]:
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


def resumes(make: Callable[[], BaseNode[Any]], plan: Plan, chance: random.Random, share: float = 1.0) -> int:
    whole, _ = run(Loader(make()), plan)
    held = 0
    for epoch, (items, most) in enumerate(zip(whole[:-1], plan, strict=False)):
        # The last position is after the end of the loop: a node detects its end only if a further item is requested.
        for position in range(len(items) + 2 if most is None else len(items)):
            if chance.random() > share and position not in (0, len(items) + 1):
                continue
            epochs, state = run(Loader(make()), plan, (epoch, position))
            assert epochs == whole, f"saving at {epoch}, {position} changes what comes"
            resumed = Loader(make())
            resumed.load_state_dict(pickle.loads(state))
            over = position >= len(items)
            left = [*plan[epoch + 1 :]] if over else [most and most - position, *plan[epoch + 1 :]]
            expected = whole[epoch + 1 :] if over else [items[position:], *whole[epoch + 1 :]]
            assert run(resumed, left)[0] == expected, (epoch, position, pickle.loads(state))
            held += 1
    return held
