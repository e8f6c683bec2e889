"""Marks: places of a loader inside an epoch at which main's part of the graph was looked at, as they stand in states.

Role: data and its check; `_snapshots` makes marks and goes on from them. Runs in main.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchdata._engine.snapshots import is_sealed
from torchdata.dataloader2.services.places import check_base, check_place, check_processes

__all__ = ["Mark", "check_iteration"]


@dataclass(frozen=True)
class Mark:
    """A place at which main's part of the graph was looked at."""

    #: Items of the epoch that were given by then.
    given: int
    #: The state of main's part, sealed; None if it begins, or holds nothing that counts.
    graph: bytes | None = None
    #: The global generators, sealed, where main runs functions of the user's.
    generators: bytes | None = None
    #: The place of the workers.
    workers: dict[str, Any] | None = None
    #: Whether no worker processes run the graph.
    in_main: bool = True
    #: The generators with which the epoch began, where they are needed to begin it anew.
    beginning: bytes | None = None
    #: Why the place of the workers does not tell what lasts in them beyond the pass that ran then, if it does not.
    untold: str | None = None

    def at(self, given: int, ended: bool) -> dict[str, Any]:
        """The mark, and how many items behind it were given, as they stand in a state."""
        return {
            "given": given,
            "drop": given - self.given,
            "ended": ended,
            "graph": self.graph,
            "generators": self.generators,
            "beginning": self.beginning,
            "workers": self.workers,
            "in_main": self.in_main,
        }


#: More items than an epoch has.
_MOST = 1 << 46

_FIELDS = {"given": int, "drop": int, "ended": bool, "in_main": bool}


def check_iteration(place: Any) -> None:
    """Raises ValueError if this is no place of a loader, or a part of it is not whole."""
    if not isinstance(place, dict):
        raise ValueError(f"it is of type {type(place).__name__} where a place should be")
    for name, kind in _FIELDS.items():
        if type(place.get(name)) is not kind:
            raise ValueError(f"its {name!r} is {place.get(name)!r}")
    if type(place.get("seconds", 0.0)) is not float:
        raise ValueError(f"its 'seconds' is {place['seconds']!r}")
    if type(place.get("own_seeds", False)) is not bool:
        raise ValueError(f"its 'own_seeds' is {place['own_seeds']!r}")
    if not 0 <= place["drop"] <= place["given"] < _MOST:
        raise ValueError(f"it drops {place['drop']} of {place['given']} items")
    for name in ("graph", "generators", "beginning"):
        sealed = place.get(name, b"")
        if sealed is not None and not is_sealed(sealed):
            raise ValueError(f"its {name!r} is no snapshot")
    if place.get("workers") is not None:
        check_place(place["workers"])
    elif "workers" not in place:
        raise ValueError("it says nothing of workers")
    check_base(place.get("base"))
    check_processes(place.get("processes"), place["workers"])
