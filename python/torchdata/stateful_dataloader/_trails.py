"""How a stream has come to where it stands: a place, what was read behind it, and the epochs that were begun since.

Role: owned by a reader, in the process that reads. A stream that has given nothing in its epoch has no place inside it,
and the one where the epoch before was left does not say how the next one begins: some streams go on there, others begin
anew, and a generator takes a loaded state with its first item only. Going the same way once more leaves each of them
as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchdata.stateful_dataloader._frozen import thaw

__all__ = ["STATES", "Trails", "base_of"]

#: The keys of the states that a place consists of.
STATES = "dataset_state", "dataset_iter_state", "collate_state"
#: Epochs that are begun again at most, each of which was left before a second batch.
_MOST = 256


@dataclass
class _Trail:
    #: A place inside an epoch, at its end, or before the first epoch, as a dict or frozen; None if it is not known.
    base: dict[str, Any] | bytes | None = None
    #: Batches of that epoch that were read behind it.
    since: int = 0
    #: By epoch that was begun behind it: how many batches were read.
    later: list[int] = field(default_factory=list)
    #: Whether the dataset was given this place here, or was at an end. Else one batch at least must have been read
    #: since then: a generator takes what is loaded with its first item.
    is_whole: bool = True

    @property
    def is_walked(self) -> bool:
        """Whether anything has happened behind the place."""
        return bool(self.since or self.later)


class Trails:
    """The last two ways: the older one has one batch more at least.

    Args:
        trail: the way so far; None if nothing has begun.
    """

    def __init__(self, trail: _Trail | None = None) -> None:
        self._trails = [trail or _Trail()]

    @classmethod
    def of(cls, place: dict[str, Any]) -> Trails:
        """The trails of a dataset that was brought to a saved place."""
        base: dict[str, Any] | None = place
        later = place["later"]
        if later is not None:
            begun = base_of(place)
            base = begun and {**begun, "random": place["random"]}
        return cls(_Trail(base, place["since"], list(later or ())))

    @classmethod
    def before_all(cls, states: dict[str, Any]) -> Trails:
        """The trails of a dataset of which nothing was read yet.

        Args:
            states: the states of its parts.
        """
        return cls(_Trail({**states, "ended": False, "unbegun": True, "random": None}))

    @property
    def stand_at_an_end(self) -> bool:
        """Whether the last place is that of an end, and nothing was begun since."""
        newest = self._trails[-1]
        return newest.is_whole and newest.base is not None and not newest.is_walked

    @property
    def is_unknown(self) -> bool:
        """Whether nothing has begun, and no place is known."""
        return self._trails[-1].base is None and not self._trails[-1].is_walked

    @property
    def is_inside(self) -> bool:
        """Whether the last place lies inside the epoch that has begun last."""
        return not self._trails[-1].later and self._trails[-1].base is not None

    def count(self) -> None:
        """Counts a batch that is read."""
        for trail in self._trails:
            if trail.later:
                trail.later[-1] += 1
            else:
                trail.since += 1

    def note(self, place: dict[str, Any] | bytes, is_end: bool) -> None:
        """Notes a place that was taken inside an epoch, or at its end."""
        fresh = _Trail(place, is_whole=is_end)
        if self._trails[-1].is_walked:
            self._trails = [self._trails[-1], fresh]
        else:
            self._trails[-1] = fresh

    def begin(self) -> None:
        """Notes that an epoch begins."""
        newest = self._trails[-1]
        trail = newest if newest.is_whole or newest.is_walked else self._trails[0]
        if len(trail.later) >= _MOST:
            trail = _Trail(newest.base, max(1, newest.since))
        trail.later.append(0)
        self._trails = [trail]

    def told(self) -> dict[str, Any]:
        """The part of a place that tells the way, if an epoch has begun and nothing was read in it."""
        return _told(self._trails[0])

    def told_inside(self) -> dict[str, Any]:
        """The same if batches were read in it."""
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
    """Returns the place from which another place is reached by reading batches; None if that place has none."""
    base: dict[str, Any] | None = place["base"]
    if base is not None or place["later"]:
        return base
    # Nothing had begun: the states in the place are those of the beginning, and an iterator's is that of a dataset
    # that is its own iterator.
    own = place["dataset_iter_state"] if place["dataset_state"] is None else place["dataset_state"]
    states = {**dict.fromkeys(STATES), "dataset_state": own, "collate_state": place["collate_state"]}
    return {**states, "ended": False, "unbegun": True}
