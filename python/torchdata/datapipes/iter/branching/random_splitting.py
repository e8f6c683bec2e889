"""The pipe that splits its source at random: RandomSplitter.

`random_split` returns *children* that share one main pipe, which owns the random generator. Each child reads the whole
source and yields only its own items. Only one child can be read at a time, because a new iteration of one child
invalidates all earlier iterators of the children.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Hashable, Iterator
from itertools import accumulate
from typing import Any, ClassVar

from torchdata._native import IterationToken
from torchdata.datapipes._pipe.checks import check_int, check_source, check_weights, wrong_type
from torchdata.datapipes._pipe.explaining import no_fault_of_an_item
from torchdata.datapipes._pipe.random import draw_seed
from torchdata.datapipes._pipe.state.declared import checked_state, random_state, state
from torchdata.datapipes._pipe.state.iteration import start_pass
from torchdata.datapipes._pipe.state.record import token_of
from torchdata.datapipes._pipe.streams import close_dropped
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter.branching.children import Child, SharedMain

__all__ = ["RandomSplitter"]

_SEEDS = (int, float, str, bytes, bytearray)


class _SplitMain(SharedMain):
    """The main pipe of `random_split`, which chooses for each item the child that yields it.

    Children are chosen at random by their weights. The weight of a child is the number of items that the child still
    has to receive. If a weight becomes negative, it is set to 0, and the weights are scaled so that their sum is the
    number of remaining items.
    """

    drawn_as: ClassVar[str] = "RandomSplitter"
    _reader: int | None = checked_state(lambda pipe: (range(len(pipe.keys)), None))
    _rng: random.Random = random_state()
    _weights: list[float] = checked_state(([int | float],), list)
    _remaining: int = state(0)
    _seed: Any = state(copied=True, lasts=True)

    def __init__(self, source_datapipe: Any, total_length: int, weights: dict[Any, float], seed: Any) -> None:
        self.source_datapipe = source_datapipe
        self.total_length = total_length
        self.keys = list(weights)
        self.norm_weights = _scaled(list(weights.values()), total_length)
        self._seed = draw_seed() if seed is None else seed
        self._rng = random.Random(self._seed)
        self._child_tokens = [IterationToken() for _ in self.keys]

    def override_seed(self, seed: Any) -> None:
        _check_seed(seed)
        self._seed = draw_seed() if seed is None else seed

    def join(self, reader: int) -> None:
        self._begin_round(reader)
        self._reader = reader
        self._rng.seed(self._seed)
        self._weights: list[float] = list(self.norm_weights)
        self._remaining = self.total_length

    def open(self, instance: int) -> None:
        if self._reader == instance and token_of(self).armed:
            start_pass(self)

    def read(self, instance: int) -> Iterator[Any]:
        if self._reader != instance:  # a state was loaded in which this child's iteration had ended
            return iter(())
        return self._own_items(iter(self.source_datapipe), instance)

    def _own_items(self, source: Iterator[Any], instance: int) -> Iterator[Any]:
        for item in source:
            if self._draw() == instance:
                yield item
            else:
                close_dropped(item)

    def _draw(self) -> int:
        weights = self._weights
        if self._remaining == 0:
            error = ValueError(
                f"random_split: the source has more items than total_length={self.total_length}, so the "
                f"group of the last items is unknown; pass the number of items of the source as total_length"
            )
            raise no_fault_of_an_item(error)
        # The next lines choose the same child as `random.choices` with weights, but skip the checks of the arguments.
        bounds = list(accumulate(weights))
        chosen = bisect(bounds, self._rng.random() * bounds[-1], 0, len(bounds) - 1)
        weights[chosen] -= 1
        self._remaining -= 1
        if weights[chosen] < 0:
            weights[chosen] = 0.0
            if sum(weights) > 0:
                self._weights = _scaled(weights, self._remaining)
        return chosen

    def length(self, instance: int) -> int:
        if all(weight.is_integer() for weight in self.norm_weights) and sum(self.norm_weights) == self.total_length:
            return int(self.norm_weights[instance])
        raise TypeError(
            f"random_split: Lengths of the split cannot be known in advance (asked for: {self.keys[instance]!r}); "
            f"supply integer `weights` that sum up to total_length={self.total_length}, or set one by "
            "`.set_length(length)`"
        )


class _Split(Child):
    def __init__(self, main_datapipe: _SplitMain, target: Any) -> None:
        super().__init__(main_datapipe, main_datapipe.keys.index(target))
        self.target = target

    def override_seed(self, seed: Any) -> _Split:
        """Sets the seed of the split for all children, from the next iteration on. Returns the pipe itself."""
        self.main_datapipe.override_seed(seed)
        return self

    def _reads_in_pass(self, source: _SplitMain) -> bool:
        return source._reader == self.instance_id

    def _drop_broken(self) -> None:
        """Does nothing, because a child can always continue after a skipped exception."""


def _scaled(weights: list[float], total: int) -> list[float]:
    before = sum(weights)
    return [float(weight) * total / before for weight in weights]


def _check_seed(seed: Any) -> None:
    if seed is not None and not isinstance(seed, _SEEDS):
        raise wrong_type("RandomSplitter", "seed", "an integer (or a float, str, bytes or None)", seed)


class RandomSplitter(IterDataPipe[Any]):
    """Divides the items at random into groups of given sizes: returns one child pipe for each group.

    Each child reads the whole source, so only one child can be read at a time. The split depends only on the seed and
    on the order of the source. If every epoch and process reads the source in one fixed order, each item always belongs
    to the same group, as in torchdata 0.9. Put `shuffle` and `sharding_filter` after the split.
    `child.override_seed(seed)` chooses another split for all children.

    Args:
        source_datapipe: the pipe to read.
        weights: a dict from the name of each group to its size, which is a number of items or a fraction. The children
            have a length if the sizes are integers that add up to the number of items.
        seed: the seed of the split; None for a random seed, which is drawn when the pipe is built.
        total_length: the number of items of the source; `len(source_datapipe)` by default.
        target: the name of the only group to return; None (the default) returns the list of all groups.

    Raises:
        TypeError: `weights` is not a dict of numbers, `seed` is not a valid seed, or `total_length` is not given and
            the length of the source is unknown.
        ValueError: a weight is negative, all weights are zero, or `total_length` is negative; or, while iterating, the
            source has more items than `total_length`.
        KeyError: `target` is not a group in `weights`.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> train, valid = IterableWrapper(range(10)).random_split({"train": 8, "valid": 2}, seed=0)
        >>> len(list(train)), len(valid), sorted([*train, *valid]) == list(range(10))
        (8, 2, True)
    """

    def __new__(
        cls,
        source_datapipe: Any,
        weights: dict[Any, float],
        seed: Any,
        total_length: int | None = None,
        target: Hashable | None = None,
    ) -> Any:
        name = "RandomSplitter"
        source = check_source(name, source_datapipe, "source_datapipe")
        numbers = check_weights(name, "weights", weights, positive=False)
        _check_seed(seed)
        if total_length is None:
            try:
                total_length = len(source)
            except (TypeError, NotImplementedError) as error:
                raise TypeError(
                    f"{name} needs `total_length`, but it is unable to infer it from the `source_datapipe`: {source!r} "
                    "has no length"
                ) from error
        check_int(name, "total_length", total_length, least=0)
        if target is not None and target not in weights:
            raise KeyError(f"{name}: target={target!r} does not match any key in `weights`: {list(weights)}")
        main = _SplitMain(source, total_length, dict(zip(weights, numbers, strict=True)), seed)
        return [_Split(main, key) for key in weights] if target is None else _Split(main, target)
