"""Slow resuming: warnings of states from which much is to be made again, and of pipelines that cannot be saved.

Role: pure functions over places and errors. Run in main, where a state is taken or loaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torchdata._engine.snapshots import unseal
from torchdata.datapipes.state import replays

__all__ = ["warn_of_replay", "warn_of_unsaved"]

#: Less than so many seconds nobody minds.
_LEAST = 5.0

#: Of fewer items the time is mostly that in which the workers started.
_FEW = 100

#: A snapshot of more bytes is not opened for this: what it holds stands in buffers.
_LARGE = 4 << 20


def warn_of_replay(place: dict[str, Any] | None, stacklevel: int) -> None:
    """Warns where going on at a place takes seconds, because items have to be made again: which, and how long."""
    if place is None:
        return
    found = list(_again(place))
    seconds = max((seconds for *_, seconds in found), default=0.0)  # processes work side by side
    if seconds < _LEAST:
        return
    parts = [f"{items} items of {what}" for what, items, each in found if each >= _LEAST / 10]
    warnings.warn(
        f"going on from this state will take about {seconds:.0f} s at most, as long as it took to make what has to be "
        f"made again: {'; '.join(parts[:4])}. A pipe of your own is not replayed if it declares its state (`state`), "
        "has `state_dict` and `load_state_dict`, or says `one_to_one = True`",
        RuntimeWarning,
        stacklevel=stacklevel + 1,
    )


def _again(place: dict[str, Any]) -> Iterator[tuple[str, int, float]]:
    """The work that is done again: its name, how many items, and how many seconds these took."""
    given, lasted = place["given"], place.get("seconds", 0.0)
    if place["drop"] >= _FEW:
        yield "the epoch", place["drop"], lasted * place["drop"] / given
    yield from _in_graph(place["graph"], "")
    workers = place["workers"]
    for number, worker in enumerate([] if workers is None else workers["workers"]):
        snapshot, (items, _) = worker["snapshot"], worker["given"]
        again = items - (snapshot[0][0] if snapshot else 0)
        if again >= _FEW:
            yield f"worker {number}", again, lasted * again / items
        if snapshot:
            yield from _in_graph(snapshot[3], f" in worker {number}")


def _in_graph(sealed: bytes | None, where: str) -> Iterator[tuple[str, int, float]]:
    if sealed is None or len(sealed) > _LARGE:
        return
    content = unseal(sealed, "a snapshot of this state")
    state = content.get("graph", content)
    if "pipes" in state:
        for name, items, seconds in replays(state):
            yield f"{name}{where}", items, seconds


def warn_of_unsaved(why: str, stacklevel: int) -> None:
    """Warns that states go on from the epoch's beginning, because the graph cannot be saved, and says why."""
    warnings.warn(
        f"states of this pipeline go on from the beginning of the epoch, and make again what was given: {why}",
        RuntimeWarning,
        stacklevel=stacklevel + 1,
    )
