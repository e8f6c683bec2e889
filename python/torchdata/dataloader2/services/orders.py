"""Compares the orders of the items that workers read.

Role: runs in the main process. Receives the samples that each worker takes before its `sharding_filter`
(`_pipe/witnessing.py`), and raises an exception if workers read the same items in different orders. A different value
at one position proves nothing, because a source may augment its items at random. If a value occurs at another position,
the orders differ, unless the workers agree at all positions that both have sampled.

If a source is assumed to split itself among the workers, equal items in two workers are an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchdata.datapipes._pipe.witnessing import Note

#: Two orders are certainly different if this many items are at different positions, and this many positions have
#: different items. Items that are drawn at random from a few values meet both conditions by chance once in a million
#: epochs.
_PROOF = 20


class _Order:
    """The samples of one filter in one epoch."""

    def __init__(self) -> None:
        #: For each worker, the position of each checksum, and the checksum at each position.
        self._positions: dict[int, dict[int, int]] = {}
        self._at: dict[int, dict[int, int]] = {}
        #: Both counters have an entry for each pair of neighboring workers, by the number of the first worker.
        #: `_differs` counts positions with different items. `_moved` counts items that have different positions in the
        #: two workers. Each position and each item is counted once.
        self._differs: Counter[int] = Counter()
        self._moved: Counter[int] = Counter()
        #: For each worker, all its checksums, while they may still cover a short source completely.
        self._begun: dict[int, list[int]] = {}
        self._whole: dict[int, list[int]] = {}

    def differs(self, worker: int, note: Note) -> tuple[int, int, int] | None:
        """Adds a note from a worker. If the orders differ, returns an item's position, another worker, and the item's
        position in that worker."""
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
        """Compares short sources after all their items were sampled."""
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
    """The samples of a source that is assumed to split itself, in one epoch."""

    def __init__(self) -> None:
        #: For each worker, the distinct checksums of its samples.
        self._samples: dict[int, set[int]] = {}
        #: For each worker, whether the checksums cover all items.
        self._is_whole: dict[int, bool] = {}

    def same(self, worker: int, note: Note) -> int | None:
        """Adds a note from a worker. If another worker has read the same items, returns its number."""
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
    """The orders of one group of workers; a `Listener`."""

    def __init__(self) -> None:
        self._orders: dict[int, _Order] = {}
        self._shares: dict[int, _Shares] = {}

    def begin(self) -> None:
        """Drops the data of the last epoch."""
        self._orders, self._shares = {}, {}

    def hear(self, worker: int, notes: Sequence[Note]) -> None:
        """Compares the items of a worker with the items of all workers.

        Raises:
            RuntimeError: the orders differ, or workers have read the same part of a source that splits itself.
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
                    "and others never. Either let one process read the source: put `.sharding_round_robin_dispatch()` "
                    "in the place of `.sharding_filter()`. Or make the order the same in all workers: shuffle with a "
                    "seed that they share, or one that `set_epoch` sets, or by the pipe `.shuffle()`"
                )

    def _compare_shares(self, worker: int, note: Note) -> None:
        other = self._shares.setdefault(note.number, _Shares()).same(worker, note)
        if other is not None:
            raise RuntimeError(
                f"workers {other} and {worker} read the same items from {note.source}, so they would come twice. It "
                "was taken to divide its items among the workers, because its code uses `get_worker_info` and "
                "`num_workers`. Give `splits_itself=False` to `DataLoader2.from_dataset`, which then divides them, or "
                "`splits_itself=True` if it divides its items and some of them are equal"
            )
