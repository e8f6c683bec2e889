"""Pipes that yield items several times, or numbered: Cycler, Repeater, Enumerator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any

from torchdata.datapipes._pipe.checks import check_int, check_optional_int, check_source, length_of
from torchdata.datapipes._pipe.item_by_item import SameLength
from torchdata.datapipes._pipe.state.declared import state
from torchdata.datapipes.datapipe import IterDataPipe, T_co, token_of

__all__ = ["Cycler", "Enumerator", "Repeater"]


class Cycler(IterDataPipe[T_co]):
    """Reads its source several times.

    Args:
        source_datapipe: the pipe to read, which is iterated anew for each repetition.
        count: number of times that the source is read; None (the default) for no limit. Without a limit, reading ends
            if the source yields no item.

    Raises:
        ValueError: `count` is negative.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(2)).cycle(2))
        [0, 1, 0, 1]
    """

    #: The number of the current iteration of the source, from 0. `_pass_begin` is the number of items that were yielded
    #: in earlier iterations of the source.
    _pass: int = state(0)
    _pass_begin: int = state(0)

    def __init__(self, source_datapipe: Iterable[T_co], count: int | None = None) -> None:
        self.source_datapipe = check_source("Cycler", source_datapipe, "source_datapipe")
        words = f"Expected non-negative count, got {count}"
        self.count = check_optional_int("Cycler", "count", count, least=0, words=words)

    def __iter__(self) -> Iterator[T_co]:
        if self.count is not None and self._pass >= self.count:
            return iter(())
        return chain.from_iterable(self._passes(iter(self.source_datapipe)))

    def _passes(self, current: Iterator[T_co]) -> Iterator[Iterator[T_co]]:
        token = token_of(self)
        while True:
            yield current
            empty = token.yielded == self._pass_begin
            self._pass += 1
            self._pass_begin = token.yielded
            if (empty and self.count is None) or self._pass == self.count:
                return
            current = iter(self.source_datapipe)

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError("This Cycler instance cycles forever, and therefore doesn't have valid length")
        return self.count * length_of(self, self.source_datapipe)

    def _sources_in_use(self) -> list[Any]:
        return [] if self._pass == self.count else [self.source_datapipe]


class Repeater(IterDataPipe[T_co]):
    """Yields every item several times before the next item. The item is not copied.

    Args:
        source_datapipe: the pipe to read.
        times: number of times that each item is yielded.

    Raises:
        ValueError: `times` is less than 2.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(2)).repeat(2))
        [0, 0, 1, 1]
    """

    _item: Any = state(items=True)
    _left: int = state(0)  # the number of remaining repetitions after a resume

    def __init__(self, source_datapipe: Iterable[T_co], times: int) -> None:
        self.source_datapipe = check_source("Repeater", source_datapipe, "source_datapipe")
        self.times = check_int("Repeater", "times", times)
        if self.times <= 1:
            raise ValueError(
                "Repeater: The number of repetition must be > 1"
                f"{' (Expected non-negative count)' if self.times < 0 else ''}, got {times}"
            )

    def __iter__(self) -> Iterator[T_co]:
        return self._repeated(iter(self.source_datapipe))

    def _repeated(self, source: Iterator[T_co]) -> Iterator[T_co]:
        left, self._left = self._left, 0
        yield from repeat(self._item, left)
        times = range(self.times)
        for item in source:
            self._item = item
            for _ in times:
                yield item

    def __len__(self) -> int:
        return self.times * length_of(self, self.source_datapipe)

    def state_dict(self) -> dict[str, Any]:
        left = self._left if self._left else -token_of(self).yielded % self.times
        return {"item": self._item if left else None, "left": left}


class Enumerator(SameLength, IterDataPipe[tuple[int, T_co]]):
    """Numbers the items: yields `(number, item)`.

    Args:
        source_datapipe: the pipe to read.
        starting_index: number of the first item, 0 by default.

    Raises:
        TypeError: `starting_index` is not an integer.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").enumerate())
        [(0, 'a'), (1, 'b')]
    """

    iteration_state = ()

    def __init__(self, source_datapipe: Iterable[T_co], starting_index: int = 0) -> None:
        self.source_datapipe = check_source("Enumerator", source_datapipe, "source_datapipe")
        self.starting_index = check_int("Enumerator", "starting_index", starting_index)

    def __iter__(self) -> Iterator[tuple[int, T_co]]:
        return enumerate(self.source_datapipe, self.starting_index + token_of(self).yielded)
