"""Detects workers that read the same items in different orders.

`Orders` receives the samples that each worker takes before its `sharding_filter`, and raises an exception if workers
read the same items in different orders. Two different items at one position do not prove different orders, because a
source may augment its items at random. The orders of two workers differ if some items have different positions, and
some positions have different items.

`Orders` also raises an exception if two workers read the same items of a source that should divide its items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchdata.datapipes._pipe.witnessing import Note

#: Two orders differ if at least `_PROOF` items have different positions, and at least `_PROOF` positions have different
#: items. If a source draws random items from a small set, its orders may reach both numbers by chance, but in at most
#: one of a million epochs.
_PROOF = 20


class _Order:
    def __init__(self) -> None:
        self._positions: dict[int, dict[int, int]] = {}
        self._at: dict[int, dict[int, int]] = {}
        #: These attributes compare worker `key` with worker `key + 1`: `_differs` counts the positions with different
        #: items, and `_moved` counts the items with different positions.
        self._differs: Counter[int] = Counter()
        self._moved: Counter[int] = Counter()
        #: The checksums of the sampled items: in `_begun` for workers that are reading the source, and in `_whole` for
        #: workers that have read the whole source.
        self._begun: dict[int, list[int]] = {}
        self._whole: dict[int, list[int]] = {}

    def differs(self, worker: int, note: Note) -> tuple[int, int, int] | None:
        """If the orders differ, returns an item's position, a worker that has read this item at another position, and
        this second position; otherwise None."""
        found: tuple[int, int, int] | None = None
        positions, at = self._positions.setdefault(worker, {}), self._at.setdefault(worker, {})
        for position, checksum in note.samples:
            positions[checksum], at[position] = position, checksum
            for other in (worker - 1, worker + 1):
                if other not in self._at:
                    continue
                pair = min(worker, other)
                self._differs[pair] += self._at[other].get(position, checksum) != checksum
                first = self._positions[other].get(checksum, position)
                if first != position:
                    self._moved[pair] += 1
                    if min(self._moved[pair], self._differs[pair]) >= _PROOF:
                        found = position, other, first
        return found or self._of_short_ones(worker, note)

    def _of_short_ones(self, worker: int, note: Note) -> tuple[int, int, int] | None:
        """Compares the complete orders of workers, if all items of the source were sampled."""
        if note.start == 0:
            self._begun.setdefault(worker, []).extend(checksum for _, checksum in note.samples)
        if note.length is None or len(mine := self._begun.pop(worker, [])) != note.length:
            return None
        self._whole[worker] = mine
        for other, theirs in self._whole.items():
            if mine != theirs and set(mine) == set(theirs):
                position = next(at for at, checksum in enumerate(mine) if theirs[at] != checksum)
                return position, other, theirs.index(mine[position])
        return None


class _Shares:
    def __init__(self) -> None:
        self._samples: dict[int, set[int]] = {}
        #: Whether `_samples` contains checksums of all items that the worker has read.
        self._is_whole: dict[int, bool] = {}

    def same(self, worker: int, note: Note) -> int | None:
        """Returns the number of another worker that has read the same items as `worker`, or None."""
        mine = self._samples.setdefault(worker, set())
        mine.update(checksum for _, checksum in note.samples)
        self._is_whole[worker] = note.start == 0 and note.length == len(mine) > 0
        for other, theirs in self._samples.items():
            if other == worker:
                continue
            is_whole = self._is_whole[worker] and self._is_whole[other]
            if len(mine & theirs) >= _PROOF or (is_whole and mine == theirs):
                return other
        return None


class Orders:
    def __init__(self) -> None:
        self._orders: dict[int, _Order] = {}
        self._shares: dict[int, _Shares] = {}

    def begin(self) -> None:
        self._orders, self._shares = {}, {}

    def receive(self, worker: int, notes: Sequence[Note]) -> None:
        """Raises RuntimeError if workers read the same items in different orders, or share items that a source should
        divide.
        """
        for each in notes:
            note = Note(*each)
            if note.splits_itself:
                self._compare_shares(worker, note)
                continue
            found = self._orders.setdefault(note.number, _Order()).differs(worker, note)
            if found is not None:
                position, other, elsewhere = found
                raise RuntimeError(
                    f"the workers read {note.source} in different orders: item {position} of worker {worker} is item "
                    f"{elsewhere} of worker {other}. Each worker keeps its share by position, so some items come twice "
                    "and others never. Either let one process read the source: use `.sharding_round_robin_dispatch()` "
                    "instead of `.sharding_filter()`. Or make the order the same in all workers: shuffle with a seed "
                    "that all workers share or that `set_epoch` sets, or with the pipe `.shuffle()`"
                )

    def _compare_shares(self, worker: int, note: Note) -> None:
        other = self._shares.setdefault(note.number, _Shares()).same(worker, note)
        if other is not None:
            raise RuntimeError(
                f"workers {other} and {worker} read the same items from {note.source}, so these would come twice. The "
                "source seemed to divide its items among the workers, because its code uses `get_worker_info` and "
                "`num_workers`. Pass `splits_itself=False` to `DataLoader2.from_dataset`, which then divides them, "
                "or `splits_itself=True` if the source divides its items and some of them are equal"
            )
