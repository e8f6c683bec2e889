"""Passing over items of a loader.

Role: made for one call of `skip`, owns nothing. Runs in the thread that uses the loader.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from torchdata.dataloader2._epochs import EpochRun
from torchdata.dataloader2.state.elastic import passed_over

__all__ = ["Skipping"]


class Skipping:
    """Passes over items of the epoch that runs, without making them.

    Args:
        run: the epoch.
    """

    def __init__(self, run: EpochRun) -> None:
        self._run, self._pipeline = run, run.pipeline

    def seek_over(self, count: int) -> int:
        """Passes over items without making them, if that is possible; returns how many."""
        position, ranks = self._run.position, self._pipeline.contract.rank_in_epoch()
        if self._run.delivery.slow:
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
        if self._run.position.pass_over(count) is None:
            return None
        return self._run.position.take(0)

    def _beyond_in_workers(self, place: dict[str, Any], count: int) -> dict[str, Any] | None:
        """Goes on in workers behind so many items after a place; returns where, if that is possible."""
        if place["workers"] is None or not place["workers"]["in_order"] or place["graph"] is not None or not count:
            return None
        try:
            ranks = self._pipeline.contract.rank_in_epoch()
            later = passed_over(place, count, self._pipeline.snapshot.copy(), ranks)
        except (TypeError, ValueError):
            return None
        self._go_on_at(later)
        return later

    def _items_left(self, given: int) -> int | None:
        """How many items of the epoch come behind so many; None if nobody knows."""
        try:
            return max(0, self._pipeline.length() - given)
        except TypeError:
            return None

    def _go_on_at(self, place: dict[str, Any]) -> None:
        """Goes on at a place of the epoch that runs."""
        service = self._pipeline.contract
        ranks = service.rank_in_epoch()
        self._run.close()
        if ranks is not None and ranks.keeps_seeds:
            service.keep_seeds()
        try:
            self._run.run(place)
        except BaseException:
            self._run.place = place, True  # the next `iter` begins there
            raise

    def _has_next(self, place: dict[str, Any]) -> bool:
        """Whether an item comes behind a place at which the epoch goes on. It is made, and held or made once more."""
        try:
            item = self._run.delivery.step()
        except StopIteration:
            return False
        except Exception:  # there is one, and its error is for who asks for it
            self._go_on_at(place)
            return True
        if self._run.position.output is None:
            self._go_on_at(place)  # what is held here is in no state of the graph; of workers' items it is not to be
        else:
            self._run.delivery.source = chain([item], self._run.delivery.source)
        return True
