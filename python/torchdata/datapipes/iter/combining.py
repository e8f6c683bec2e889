"""Pipes that make one pipe of several: Concater, Zipper, Multiplexer.

Run in whichever process iterates the pipeline. Concater knows which input it reads; Multiplexer holds the
row of items, one of each input, that it is yielding. Their counterparts are in `splitting`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from torchdata.datapipes._checks import check_sources, length_of
from torchdata.datapipes._registry import functional_datapipe
from torchdata.datapipes.datapipe import IterDataPipe
from torchdata.datapipes.iter._unfolding import Unfolding
from torchdata.datapipes.state import Stateless, forget_state

__all__ = ["Concater", "Multiplexer", "Zipper"]


def _checked(pipe: str, datapipes: tuple[Any, ...]) -> tuple[Any, ...]:
    if not datapipes:
        raise ValueError(f"{pipe}: Expected at least one DataPipe, but got nothing")
    check_sources(pipe, datapipes)
    return datapipes


@functional_datapipe("concat")
class Concater(IterDataPipe[Any]):
    """Yields the items of its inputs one input after another. `a + b` is the same.

    Args:
        datapipes: the pipes to read.

    Raises:
        ValueError: there are no inputs.
        TypeError: an input is no IterDataPipe.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").concat(IterableWrapper("c")))
        ['a', 'b', 'c']
    """

    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = _checked("Concater", datapipes)
        self._current = 0

    def reset(self) -> None:
        """Goes back to the first input."""
        self._current = 0

    def __iter__(self) -> Iterator[Any]:
        # The first input begins now, so that state loaded into it is used by this iteration and no other.
        return chain.from_iterable(self._inputs(iter(self.datapipes[self._current])))

    def _inputs(self, current: Iterator[Any]) -> Iterator[Iterator[Any]]:
        yield current
        while self._current + 1 < len(self.datapipes):
            self._current += 1
            yield iter(self.datapipes[self._current])

    def __len__(self) -> int:
        return sum(length_of(self, datapipe) for datapipe in self.datapipes)

    def state_dict(self) -> dict[str, Any]:
        """The number of the input that is being read."""
        return {"current": self._current}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next iteration go on within the saved input."""
        self._current = state_dict["current"]
        current = self.datapipes[self._current]
        # The others are begun later, in this epoch or the next, and then from their start.
        forget_state(
            *[datapipe for datapipe in self.datapipes if datapipe is not current], keeping=(current,)
        )


@functional_datapipe("zip")
class Zipper(Stateless, IterDataPipe[tuple[Any, ...]]):
    """Yields tuples of one item of each input, until the shortest input ends.

    Args:
        datapipes: the pipes to read.

    Raises:
        ValueError: there are no inputs.
        TypeError: an input is no IterDataPipe.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").zip(IterableWrapper(range(5))))
        [('a', 0), ('b', 1)]
    """

    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = _checked("Zipper", datapipes)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.datapipes, strict=False)

    def __len__(self) -> int:
        return min(length_of(self, datapipe) for datapipe in self.datapipes)


@functional_datapipe("mux")
class Multiplexer(Unfolding, IterDataPipe[Any]):
    """Yields one item of each input in turn, until the shortest input ends. Incomplete rounds are not
    yielded.

    Args:
        datapipes: the pipes to read.

    Raises:
        ValueError: there are no inputs.
        TypeError: an input is no IterDataPipe.

    Example:
        >>> from torchdata.datapipes.iter import IterableWrapper
        >>> list(IterableWrapper("abc").mux(IterableWrapper(range(2))))
        ['a', 0, 'b', 1]
    """

    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = _checked("Multiplexer", datapipes)
        self._forget_unfolding()

    def __iter__(self) -> Iterator[Any]:
        return self._unfold(zip(*self.datapipes, strict=False), tuple)

    def __len__(self) -> int:
        return min(length_of(self, datapipe) for datapipe in self.datapipes) * len(self.datapipes)
