"""Records the draws that a sampler without a state makes during an epoch, so that a new iterator can repeat them.

Role: runs in the main process, one object per iterator of the loader. A resumed sampler is iterated again with the
generators from before its first index. That repeats its order if only the sampler uses the generators. If the program
or the dataset uses the same generator in between, its state before each draw of the sampler is recorded here.
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

#: How many draws are kept. The last ones suffice because a sampler keeps its latest draw (a permutation, block or
#: pool).
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
            noted: draws of the epoch from a loaded state.
        """
        self._first = first
        #: The marks of the generators after the sampler's last use.
        self._left: Moment = {}
        self._before: Moment = {}
        self._moment: Moment = {}
        #: For each draw: how many indices had been read before, and the generators as plain values.
        self.noted: deque[list[Any]] = deque(noted, maxlen=_MOST)
        #: By generator: how many indices had been read before its last use.
        self.last: dict[Any, int] = {}

    def stand(self) -> None:
        """Records the current generators as the sampler's last use."""
        self._left = self._drawing.marks()

    def before(self) -> None:
        """Must be called before an index is read."""
        self._before = self._drawing.marks()
        moved = {key for key, mark in self._left.items() if mark != self._before[key]}
        self._moment = self._drawing.now(moved) if moved else {}

    def after(self, number: int, drawn: int) -> None:
        """Must be called after an index was read.

        Args:
            number: how many indices had been read before, as `Replay` counts.
            drawn: how many indices had been read before, as the order counts.
        """
        left = self._drawing.marks()
        moved = [key for key, mark in left.items() if mark != self._before[key]]
        self._left |= {key: left[key] for key in moved}
        self.last.update(dict.fromkeys(moved, drawn))
        if any(key in self._moment for key in moved):
            wanted = {key: state for key, state in self._moment.items() if key in moved or isinstance(key, int)}
            self.noted.append([number, self._drawing.encoded(wanted, self._first)])


class Replay(Iterator[Any]):
    """A new iterator of a sampler, moved to the position of an earlier iterator.

    Args:
        iterator: the new iterator.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        #: Indices that the earlier iterator had returned but the user had not received.
        self.early: deque[Any] = deque()

    def run(self, given: int, ahead: int, draws: list[tuple[int, Moment]], drawing: Drawing) -> None:
        """Reads up to the position of the earlier iterator.

        Args:
            given: how many indices the user has received.
            ahead: how many indices were read beyond that.
            draws: for each draw, how many indices had been read before, and the generators at that time.
            drawing: the loader's generators.

        Raises:
            ValueError: the sampler has fewer indices than `given`.
        """
        read = 0
        for number, moment in [*draws, (given + ahead, {})]:
            pass_over(self._iterator, min(number, given) - read)
            self.early.extend(islice(self._iterator, max(0, number - max(read, given))))
            read = number
            drawing.set(moment)

    def __next__(self) -> Any:
        return self.early.popleft() if self.early else next(self._iterator)
