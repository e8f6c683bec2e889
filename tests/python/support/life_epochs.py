"""Epochs of a life (see `random_lives`): the items of one, and what may follow on others."""

from __future__ import annotations

from collections import Counter
from typing import Any

from random_pipelines import Differs, difference, key
from torchdata.dataloader2 import DataLoader2


class Bad(ValueError):
    """The error of some items."""


class Epoch(list[Any]):
    """Items of an epoch, and whether an error comes behind them."""

    fails = False
    #: After how many items it is left.
    until: int | None = None

    @property
    def size(self) -> int:
        """How many items are read of it."""
        return len(self) if self.until is None else min(self.until, len(self))

    def check(self, before: list[Any], got: list[Any], free: bool) -> None:
        """Raises `Differs` if these items do not follow on those before: any of the rest, if items come in any order.

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
        came = Counter(repr(item) for item in [*before, *got] if item is not None)
        if extra := came - Counter(map(repr, self)):
            raise Differs(f"{extra.total()} of {len(before)} and {len(got)} items are too many: {list(extra)[:3]}")


def read_epoch(loader: DataLoader2[Any], until: int | None = None) -> Epoch:
    """The items of the next epoch, of which at most so many are read."""
    items = Epoch()
    try:
        for item in loader:
            items.append(key(item))
            if len(items) == until:
                break
    except Bad:
        items.fails = True
    return items
