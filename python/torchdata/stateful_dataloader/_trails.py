"""Records how a stream reached its position: a snapshot, the batches read since, and the epochs that began later.

Role: owned by a reader, in the process that reads. A stream that has returned nothing in its epoch has no snapshot
within this epoch. The position where the previous epoch was left does not determine how the next one begins: some
streams continue there, and others start over. A generator applies a loaded state only with its first item. Repeating
the recorded steps produces the same position for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchdata.stateful_dataloader._frozen import thaw

__all__ = ["STATES", "Trails", "base_of"]

#: The keys of the states that form a snapshot.
STATES = "dataset_state", "dataset_iter_state", "collate_state"
#: Maximum number of epochs to repeat, if each of them was left before its second batch.
_MOST = 256


@dataclass
class _Trail:
    #: A snapshot within an epoch, at its end, or before the first epoch, as a dict or frozen; None if unknown.
    base: dict[str, Any] | bytes | None = None
    #: How many batches of that epoch were read since the snapshot.
    since: int = 0
    #: How many batches were read in each epoch that began later.
    later: list[int] = field(default_factory=list)
    #: Whether the dataset loaded this snapshot here, or was at an end. Otherwise, at least one batch must have been
    #: read since then, because a generator applies a loaded state only with its first item.
    is_whole: bool = True

    @property
    def is_walked(self) -> bool:
        """Returns whether anything happened after the snapshot."""
        return bool(self.since or self.later)


class Trails:
    """The last two trails. The older one is at least one batch longer.

    Args:
        trail: the current trail; None if nothing has begun.
    """

    def __init__(self, trail: _Trail | None = None) -> None:
        self._trails = [trail or _Trail()]

    @classmethod
    def of(cls, place: dict[str, Any]) -> Trails:
        """Returns the trails of a dataset that was moved to a saved position."""
        base: dict[str, Any] | None = place
        later = place["later"]
        if later is not None:
            begun = base_of(place)
            base = begun and {**begun, "random": place["random"]}
        return cls(_Trail(base, place["since"], list(later or ())))

    @classmethod
    def before_all(cls, states: dict[str, Any]) -> Trails:
        """Returns the trails of a dataset that was not read yet.

        Args:
            states: the states of dataset, iterator and collate function.
        """
        return cls(_Trail({**states, "ended": False, "unbegun": True, "random": None}))

    @property
    def stand_at_an_end(self) -> bool:
        """Returns whether the last snapshot is from the end of an epoch, and no epoch has begun since."""
        newest = self._trails[-1]
        return newest.is_whole and newest.base is not None and not newest.is_walked

    @property
    def is_unknown(self) -> bool:
        """Returns whether nothing has begun and no snapshot is known."""
        return self._trails[-1].base is None and not self._trails[-1].is_walked

    @property
    def is_inside(self) -> bool:
        """Returns whether the last snapshot is within the epoch that began last."""
        return not self._trails[-1].later and self._trails[-1].base is not None

    def count(self) -> None:
        """Counts a batch that was read."""
        for trail in self._trails:
            if trail.later:
                trail.later[-1] += 1
            else:
                trail.since += 1

    def note(self, place: dict[str, Any] | bytes, is_end: bool) -> None:
        """Records a snapshot that was taken within an epoch or at its end."""
        fresh = _Trail(place, is_whole=is_end)
        if self._trails[-1].is_walked:
            self._trails = [self._trails[-1], fresh]
        else:
            self._trails[-1] = fresh

    def begin(self) -> None:
        """Records that an epoch begins."""
        newest = self._trails[-1]
        trail = newest if newest.is_whole or newest.is_walked else self._trails[0]
        if len(trail.later) >= _MOST:
            trail = _Trail(newest.base, max(1, newest.since))
        trail.later.append(0)
        self._trails = [trail]

    def told(self) -> dict[str, Any]:
        """Returns the snapshot fields for an epoch that has begun but has returned nothing."""
        return _told(self._trails[0])

    def told_inside(self) -> dict[str, Any]:
        """Returns the snapshot fields for an epoch that has returned batches."""
        trail = self._trails[-1]
        if trail.later:
            return _told(trail) | {"ended": False}
        base = _thawed(trail)
        assert base is not None
        return {**base, "since": trail.since}


def _told(trail: _Trail) -> dict[str, Any]:
    base = _thawed(trail)
    return {
        "base": base and {key: base[key] for key in (*STATES, "ended", "unbegun") if key in base},
        "random": base["random"] if base else {},
        "since": trail.since,
        "later": list(trail.later),
    }


def _thawed(trail: _Trail) -> dict[str, Any] | None:
    base: dict[str, Any] | None = thaw(trail.base) if isinstance(trail.base, bytes) else trail.base
    return base


def base_of(place: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the earlier snapshot that a snapshot builds on, by reading batches after it; None if there is none."""
    base: dict[str, Any] | None = place["base"]
    if base is not None or place["later"]:
        return base
    # Nothing had begun. The states in the snapshot are from the beginning, and an iterator's state is that of a dataset
    # that is its own iterator.
    own = place["dataset_iter_state"] if place["dataset_state"] is None else place["dataset_state"]
    states = {**dict.fromkeys(STATES), "dataset_state": own, "collate_state": place["collate_state"]}
    return {**states, "ended": False, "unbegun": True}
