"""Epochs of a life: the items of one, and what may follow on others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from lives.pipelines import Differs, difference, is_planned, key


class Epoch(list[Any]):
    """Items of an epoch, and whether an error comes after them."""

    fails = False
    #: After how many items it is left.
    until: int | None = None
    #: In any order: the items of each worker, if they are known.
    shares: list[list[Any]] | None = None

    @property
    def size(self) -> int:
        """How many items are read of it."""
        return len(self) if self.until is None else min(self.until, len(self))

    def check(self, before: list[Any], got: list[Any], free: bool) -> None:
        """Raises `Differs` if these items do not follow the previous ones, in any order if the loader is unordered.

        Args:
            before: the items before; None for one that was passed over.
            got: the items.
            free: whether they come in any order.
        """
        if not free:
            wanted = self[len(before) : len(before) + len(got)]
            if got != wanted:
                raise Differs(difference(got, wanted))
            return
        came = [repr(item) for item in [*before, *got] if item is not None]
        if extra := Counter(came) - Counter(map(repr, self)):
            raise Differs(f"{extra.total()} of {len(before)} and {len(got)} items are too many: {list(extra)[:3]}")
        for worker, share in enumerate(self.shares or []):
            places = {repr(item): place for place, item in enumerate(share)}
            mine = [places[item] for item in came if item in places]
            if mine != sorted(mine):
                raise Differs(f"the items of worker {worker} came in another order than it sent them: {mine}")


def read_epoch(items: Iterable[Any], until: int | None = None, meanwhile: Callable[[], object] = lambda: None) -> Epoch:
    """The items of the next epoch, of which at most this many are read; something else is done after each."""
    epoch = Epoch()
    try:
        for item in items:
            epoch.append(key(item))
            if len(epoch) == until:
                break
            meanwhile()
    except Exception as error:
        if not is_planned(error):
            raise
        epoch.fails = True
    return epoch
