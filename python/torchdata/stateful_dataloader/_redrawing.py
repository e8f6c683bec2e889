"""Where a sampler without a state draws in the course of an epoch, so that a new iterator of it can draw the same.

Role: main; one object for each iterator of the loader. A sampler that is resumed is iterated anew with the generators
as they were before its first index. That repeats its order if only the sampler draws. If the program or the dataset
draws from the same generator in between, the generator's position before the sampler's next draw is noted here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torchdata.stateful_dataloader._drawing import Drawing
from torchdata.stateful_dataloader._generators import Moment
from torchdata.stateful_dataloader.sampler import pass_over

__all__ = ["Draws", "Replay"]

#: Draws that are noted: the last ones, since a sampler keeps what it drew last (a permutation, a block, a pool).
_MOST = 1024


class Draws:
    """The draws of a sampler in one epoch.

    Args:
        drawing: the loader's generators.
    """

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self.begin({})

    def begin(self, first: Moment, noted: Iterable[list[Any]] = ()) -> None:
        """Begins an epoch.

        Args:
            first: the generators before the first index.
            noted: draws that a state has of the epoch.
        """
        self._first = first
        #: The marks of the generators where the sampler has left them.
        self._left: Moment = {}
        self._before: Moment = {}
        self._moment: Moment = {}
        #: How many indices were read before a draw, and the generators then, as plain values.
        self.noted: deque[list[Any]] = deque(noted, maxlen=_MOST)
        #: By generator: how many indices were read before the last draw from it.
        self.last: dict[Any, int] = {}

    def stand(self) -> None:
        """Notes that the generators are where the sampler has left them."""
        self._left = self._drawing.marks()

    def before(self) -> None:
        """To be called before an index is read."""
        self._before = self._drawing.marks()
        moved = {key for key, mark in self._left.items() if mark != self._before[key]}
        self._moment = self._drawing.now(moved) if moved else {}

    def after(self, number: int, drawn: int) -> None:
        """To be called once an index was read.

        Args:
            number: the indices that were read before it, as `Replay` counts them.
            drawn: the same, as the order counts them.
        """
        left = self._drawing.marks()
        moved = [key for key, mark in left.items() if mark != self._before[key]]
        self._left |= {key: left[key] for key in moved}
        self.last.update(dict.fromkeys(moved, drawn))
        if any(key in self._moment for key in moved):
            wanted = {key: state for key, state in self._moment.items() if key in moved or isinstance(key, int)}
            self.noted.append([number, self._drawing.encoded(wanted, self._first)])


class Replay(Iterator[Any]):
    """A new iterator of a sampler, brought to where an earlier one stood.

    Args:
        iterator: the new one.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        #: Indices that the earlier one had given, and the user had not got.
        self.early: deque[Any] = deque()

    def run(self, given: int, ahead: int, draws: list[tuple[int, Moment]], drawing: Drawing) -> None:
        """Reads what the earlier iterator had read.

        Args:
            given: the indices that the user has got.
            ahead: those that were read beyond.
            draws: how many indices were read before a draw, and the generators then.
            drawing: the loader's generators.

        Raises:
            ValueError: the sampler gives fewer than `given`.
        """
        read = 0
        for number, moment in [*draws, (given + ahead, {})]:
            pass_over(self._iterator, min(number, given) - read)
            self.early.extend(islice(self._iterator, max(0, number - max(read, given))))
            read = number
            drawing.set(moment)

    def __next__(self) -> Any:
        return self.early.popleft() if self.early else next(self._iterator)
