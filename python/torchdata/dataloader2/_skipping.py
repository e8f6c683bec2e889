"""Passing over items of a loader.

Role: a base of `DataLoader2`, of which it is a part. Runs in the thread that uses the loader.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from torchdata.dataloader2._checkpointing import number_of_items
from torchdata.dataloader2._iterator import DataLoader2Iterator
from torchdata.dataloader2._snapshots import Position
from torchdata.dataloader2.graph.serialization import Snapshot
from torchdata.dataloader2.services.elastic import passed_over
from torchdata.dataloader2.services.interface import contract_of

__all__ = ["Skipping"]


class Skipping:
    """The part of a loader that passes over items."""

    valid_iterator_id: int | None
    _reset_iter: bool
    _place: tuple[dict[str, Any], bool] | None
    _iterating: bool
    _datapipe_iter: Any
    _delivery: Any
    _position: Position
    _snapshot: Snapshot
    reading_service: Any

    if TYPE_CHECKING:  # what else it asks of the loader

        def _close_iteration(self, because: BaseException | None = None, *, at_end: bool = False) -> None: ...

        def _run_epoch(self, place: dict[str, Any] | None = None) -> None: ...

    def skip(self, count: int) -> int:
        """Passes over the next items of the epoch that runs, or of a new one: over bad data, for one.

        Where pipes can seek, the items are not made: of ranges, sequences, map pipes (shuffled ones, too) and Parquet's
        row groups, with pipes behind them that make each item of one, or batches. Of other sources what they read is
        made, and the functions behind that are not called. Workers seek where they could go on with another number of
        workers (see `load_state_dict`), and items are taken in order. Where the loader has no length they make the item
        behind these, to see whether the epoch goes on, and all of them where it does not. Elsewhere the items are made
        and dropped. What functions would have drawn from the global generators is not drawn then.

        With ranks the items are those that this rank would be given. Each rank passes over its own, so all of them are
        to call it at the same step with the same number; r ranks leave out r times as many items of the data set. Where
        they have n workers each, up to n - 1 items are made and dropped.

        The next `iter` goes on behind them.

        Args:
            count: how many items.

        Returns:
            How many there were: fewer where the epoch has ended.

        Raises:
            TypeError: `count` is no integer.
            ValueError: `count` is negative.
        """
        count = number_of_items("count", count)
        loader: Any = self
        if self._delivery.cut:
            self._position.go_on_cut()
        begins = self._reset_iter and not self._iterating
        iterator = iter(loader) if begins else DataLoader2Iterator(loader, self._valid())
        skipped = self._seek_over(count) if count and self._iterating else 0
        while skipped < count and next(iterator, self) is not self:
            skipped += 1
        if self._iterating:
            self._reset_iter = False  # the next `iter` takes this epoch over
        return skipped

    def _seek_over(self, count: int) -> int:
        """Passes over items without making them, where that is possible; returns how many."""
        position, ranks = self._position, contract_of(self.reading_service).rank_in_epoch()
        if self._delivery.slow:
            return 0
        if position.output is None and ranks is None:
            return position.pass_over(count) or 0
        place = position.take(0)
        if place is None or place["drop"]:
            return 0
        left = self._items_left(place["given"])
        count = count if left is None else min(count, left)
        later = self._beyond_in_main(count) if position.output is None else self._beyond_in_workers(place, count)
        if later is None:
            return 0
        if left is None and not self._has_next(later):
            self._go_on_at(place)  # some of them are there, and who makes them finds out how many
            return 0
        passed: int = later["given"] - place["given"]
        return passed

    def _beyond_in_main(self, count: int) -> dict[str, Any] | None:
        """Goes on behind the next items of this rank, which runs its pipes in main; returns where, if it can."""
        if self._position.pass_over(count) is None:
            return None
        return self._position.take(0)

    def _beyond_in_workers(self, place: dict[str, Any], count: int) -> dict[str, Any] | None:
        """Goes on in workers behind so many items after a place; returns where, if that is possible."""
        if place["workers"] is None or not place["workers"]["in_order"] or place["graph"] is not None or not count:
            return None
        try:
            ranks = contract_of(self.reading_service).rank_in_epoch()
            later = passed_over(place, count, self._snapshot.copy(), ranks)
        except (TypeError, ValueError):
            return None
        self._go_on_at(later)
        return later

    def _items_left(self, given: int) -> int | None:
        """How many items of the epoch come behind so many; None where nobody knows."""
        loader: Any = self
        try:
            return max(0, len(loader) - given)
        except TypeError:
            return None

    def _go_on_at(self, place: dict[str, Any]) -> None:
        """Goes on at a place of the epoch that runs."""
        service = contract_of(self.reading_service)
        ranks = service.rank_in_epoch()
        self._close_iteration()
        if ranks is not None and ranks.keeps_seeds:
            service.keep_seeds()
        try:
            self._run_epoch(place)
        except BaseException:
            self._place = place, True  # the next `iter` begins there
            raise

    def _has_next(self, place: dict[str, Any]) -> bool:
        """Whether an item comes behind a place at which the epoch goes on. It is made, and held or made once more."""
        try:
            item = self._delivery.step()
        except StopIteration:
            return False
        except Exception:  # there is one, and its error is for who asks for it
            self._go_on_at(place)
            return True
        if self._position.output is None:
            self._go_on_at(place)  # what is held here is in no state of the graph; of workers' items it is not to be
        else:
            self._datapipe_iter = chain([item], self._datapipe_iter)
        return True

    def _valid(self) -> int:
        if self.valid_iterator_id is None:
            self.valid_iterator_id = 0
        return self.valid_iterator_id
