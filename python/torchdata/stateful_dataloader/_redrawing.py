"""Records the draws that a sampler without a state makes during an epoch, so that a new iterator can repeat them.

Role: runs in the main process, with one object per iterator of the loader. To resume a sampler, its iterator is
recreated with the generators from before its first index. This repeats the order if only the sampler draws. If the
program or the dataset draws from the same generator meanwhile, the generator's position before the sampler's next draw
is recorded here.

A checksum of some of the indices shows whether the new iterator repeats the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torchdata.datapipes._pipe.witnessing import Digest
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

    def begin(self, first: Moment, noted: Iterable[list[Any]] = (), digest: Digest | None = None) -> None:
        """Begins an epoch.

        Args:
            first: the generators before the first index.
            noted: the draws of this epoch in a loaded state.
            digest: the checksum of the indices that were read; None if no indices were read.
        """
        self._first = first
        self._digest = digest or Digest()
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
        """Records the generators. Call it before an index is read."""
        self._before = self._drawing.marks()
        moved = {key for key, mark in self._left.items() if mark != self._before[key]}
        self._moment = self._drawing.now(moved) if moved else {}

    def after(self, number: int, drawn: int, indices: list[Any]) -> None:
        """Records the draws of an index or a batch of indices. Call it once they were read.

        Args:
            number: how many indices were read before, as `Replay` counts them.
            drawn: how many indices were read before, as the order counts them.
            indices: the indices that were read.
        """
        digest = self._digest
        while number <= digest.next < number + len(indices):
            digest.add(indices[digest.next - number])
        left = self._drawing.marks()
        moved = [key for key, mark in left.items() if mark != self._before[key]]
        self._left |= {key: left[key] for key in moved}
        self.last.update(dict.fromkeys(moved, drawn))
        if any(key in self._moment for key in moved):
            wanted = {key: state for key, state in self._moment.items() if key in moved or isinstance(key, int)}
            self.noted.append([number, self._drawing.encoded(wanted, self._first)])

    @property
    def digest(self) -> list[int] | None:
        """Returns the checksum of the indices for a state; None if a replay cannot repeat all of them."""
        return list(self._digest.as_tuple()) if len(self.noted) < _MOST else None


class _Sampled(Iterator[Any]):
    """An iterator that adds some of its items to a checksum."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator, self._read, self.digest = iterator, 0, Digest()

    def __next__(self) -> Any:
        item = next(self._iterator)
        if self._read == self.digest.next:
            self.digest.add(item)
        self._read += 1
        return item


class Replay(Iterator[Any]):
    """A new iterator of a sampler, moved to the position of an earlier iterator.

    Args:
        iterator: the new iterator.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        #: Indices that the earlier iterator had returned but the user had not received.
        self.early: deque[Any] = deque()

    def run(
        self, given: int, ahead: int, draws: list[tuple[int, Moment]], drawing: Drawing, saved: Digest | None
    ) -> Digest | None:
        """Reads what the earlier iterator had read, and returns its checksum if there is one for comparison.

        Args:
            given: how many indices the user has received.
            ahead: how many indices were read beyond that.
            draws: for each draw, how many indices had been read before, and the generators at that time.
            drawing: the loader's generators.
            saved: the checksum of the indices that were read; None if they are not compared.

        Raises:
            ValueError: the sampler returns fewer than `given` indices, or different indices.
        """
        sampled = None if saved is None else _Sampled(self._iterator)
        iterator, read = sampled or self._iterator, 0
        for number, moment in [*draws, (given + ahead, {})]:
            pass_over(iterator, min(number, given) - read)
            self.early.extend(islice(iterator, max(0, number - max(read, given))))
            read = number
            drawing.set(moment)
        if sampled is None or saved is None:
            return None
        if not sampled.digest.agrees_with(saved):
            raise ValueError(
                f"the sampler does not repeat itself, so the loader cannot resume from the state: the first {read} "
                "indices are not those that were read when the state was saved. Seed whatever shuffles them, in each "
                "epoch, or give the sampler state_dict() and load_state_dict(). load_state_dict(state, strict=False) "
                "passes over as many indices of the new order"
            )
        return sampled.digest

    def __next__(self) -> Any:
        return self.early.popleft() if self.early else next(self._iterator)
