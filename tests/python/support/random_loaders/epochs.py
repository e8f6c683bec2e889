"""Compares the received items of an epoch with the expected items."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from random_loaders.pipelines import ENDS, Differs, difference, is_planned, key


class Epoch(list[Any]):
    fails = False
    until: int | None = None
    shares: list[list[Any]] | None = None

    @property
    def size(self) -> int:
        return len(self) if self.until is None else min(self.until, len(self))

    def check(self, before: list[Any], got: list[Any], free: bool) -> None:
        if not free:
            wanted = self[len(before) : len(before) + len(got)]
            if got != wanted:
                raise Differs(difference(got, wanted))
            return
        arrived = [repr(item) for item in [*before, *got] if item is not None]
        if extra := Counter(arrived) - Counter(map(repr, self)):
            raise Differs(f"{extra.total()} of {len(before)} and {len(got)} items are too many: {list(extra)[:3]}")
        for worker, share in enumerate(self.shares or []):
            indices = {repr(item): position for position, item in enumerate(share)}
            mine = [indices[item] for item in arrived if item in indices]
            if mine != sorted(mine):
                raise Differs(f"the items of worker {worker} came in another order than it sent them: {mine}")


def read_epoch(items: Iterable[Any], until: int | None = None, meanwhile: Callable[[], object] = lambda: None) -> Epoch:
    epoch = Epoch()
    try:
        for item in items:
            epoch.append(key(item))
            if len(epoch) == until:
                break
            meanwhile()
    except ENDS as error:
        if not is_planned(error):
            raise
        epoch.fails = True
    return epoch
