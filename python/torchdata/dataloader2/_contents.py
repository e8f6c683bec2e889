"""The sealed contents of a loader's state: snapshots of graphs and generators, and whether all in them may be believed.

Role: pure functions over places, before a state is loaded or described. Nothing is unpickled that may run code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata._engine.snapshots import unseal
from torchdata.dataloader2.services.places import check_offset
from torchdata.datapipes._pipe.division import given_from
from torchdata.datapipes._pipe.layout import (
    check_entries,
    check_generators,
    refuse_pickled_entries,
    refuse_pickled_generators,
)

__all__ = ["check_contents", "pipes_in", "refuse_pickled_contents"]

#: How often the items of an epoch may have been shared anew, one time within the other.
_DEEPEST = 100


def check_contents(place: dict[str, Any]) -> None:
    """Raises ValueError if something that is sealed in a place cannot be gone on from.

    Args:
        place: a place whose own layout was checked.
    """
    for content in _contents(place):
        _check(content)


def refuse_pickled_contents(place: dict[str, Any]) -> None:
    """Raises ValueError, which names the pipe, if something in a place would have to be unpickled."""
    for content in _contents(place):
        refuse_pickled_entries(pipes_in(content))
        refuse_pickled_generators(content if "random" in content else content.get("generators"))


def pipes_in(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of the pipes of a snapshot; if items are shared anew, of those before; none of generators."""
    if content.get("base") == "filter":
        return content["entries"] or []
    entries: list[dict[str, Any]] = content.get("graph", content).get("pipes", [])
    return entries


def _contents(place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All that is sealed in a place, and what is sealed in that."""
    for outermost in _sealed(place):
        sealed: bytes | None = outermost
        for _ in range(_DEEPEST):
            content = unseal(sealed, "a snapshot")
            if not isinstance(content, dict):
                raise ValueError(f"a snapshot holds an object of type {type(content).__name__}")
            yield content
            sealed = content.get("under") if content.get("base") == "end" else None
            if sealed is None:
                break
        else:
            raise ValueError(f"its items were shared anew more than {_DEEPEST} times")


def _sealed(place: dict[str, Any]) -> Iterator[bytes]:
    workers = place["workers"] or {"workers": (), "dispatching": None}
    found = [place.get(name) for name in ("graph", "generators", "beginning")]
    found += [worker["snapshot"][3] for worker in workers["workers"] if worker["snapshot"]]
    found += [workers["dispatching"][2]] if workers["dispatching"] else []
    found += [(each.get("base") or {}).get("content") for each in (place, workers)]
    return (sealed for sealed in found if sealed is not None)


def _check(content: dict[str, Any]) -> None:
    if "random" in content:
        check_generators(content)
        return
    base = content.get("base")
    if base is not None:
        _check_base(content, base)
    else:
        graph = content.get("graph", content)
        check_entries(graph.get("pipes") if isinstance(graph, dict) else None)
    if content.get("generators") is not None:
        check_generators(content["generators"])
    elif "graph" in content:
        raise ValueError("a snapshot of a worker has no generators")
    if "skip" in content:
        _check_given(content["skip"])


def _check_base(content: dict[str, Any], base: Any) -> None:
    if base not in ("filter", "end"):
        raise ValueError(f"the items are shared anew at {base!r}")
    _check_given(content)
    if base == "filter":
        if content.get("entries") is not None:
            check_entries(content["entries"])
        taken = content.get("taken")
        if type(taken) is not int or taken < 0 or "entries" not in content:
            raise ValueError(f"the division had taken {taken!r} items")
        check_offset(content)
    elif "under" not in content:
        raise ValueError("what is dealt anew has no beginning")


def _check_given(found: Any) -> None:
    if not isinstance(found, dict) or not isinstance(found.get("given"), (list, tuple)):
        raise ValueError("what was given before is not told")
    given_from(found.get("first"), found["given"])
