"""States of graphs in the layout before this one, read as they would be saved today.

Role: `load_state` hands states of version 1 to `from_version_1`. Most of what the pipes say of themselves has stayed
the same; what is said of their passes has other names now. Runs where a state is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchdata.datapipes._pipe.plain import to_plain
from torchdata.datapipes._pipe.traversal import walk

__all__ = ["from_version_1"]


def from_version_1(state: dict[str, Any], pipes: list[Any]) -> dict[str, Any]:
    """The same state in the layout of version 2.

    Version 1 told four ways: to restore a pipe, to replay it, to start it anew below a replayed one (`restart`), and
    that it was never begun (`fresh`). It did not know of pipes that have finished: they are asked for one more item.

    Args:
        state: the state.
        pipes: the pipes of the graph that it is to be loaded into, in the order of its entries.
    """
    if [former["type"] for former in state["pipes"]] != [type(pipe).__name__ for pipe in pipes]:
        return {"version": 2, "pipes": state["pipes"]}  # of another pipeline, and refused as such
    entries = [_entry(former, pipe) for former, pipe in zip(state["pipes"], pipes, strict=True)]
    anew = _read_once_more(state["pipes"], pipes)
    return {
        "version": 2,
        "pipes": [
            {"type": entry["type"], "how": "begin"} if id(pipe) in anew else entry
            for pipe, entry in zip(pipes, entries, strict=True)
        ],
    }


def _read_once_more(formers: list[dict[str, Any]], pipes: list[Any]) -> set[int]:
    """Ids of the pipes that begin anew: that of `to_map_datapipe` did not hold its items, so it reads them again."""
    found: set[int] = set()
    for former, pipe in zip(formers, pipes, strict=True):
        if former["type"] == "IterToMapConverter":
            found.update(map(id, walk(pipe)))
    return found


def _entry(former: dict[str, Any], pipe: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": former["type"], "how": "begin"}
    if former["how"] == "restore" and (former["type"], former["yielded"]) != (
        "_Split",
        0,
    ):  # which was not begun
        own = former.get("state", {})
        own = _TRANSLATED.get(former["type"], _of_random_pipe)(own, pipe)
        entry |= {"how": "restore", "yielded": former["yielded"], "finished": False}
        entry["state"] = to_plain(own, former["type"])
        return entry
    if former["how"] == "replay":
        entry["drop"] = former["yielded"]
    if former.get("seed") is not None:
        entry["seed"] = former["seed"]
    return entry


def _of_random_pipe(own: dict[str, Any], pipe: Any) -> dict[str, Any]:
    """The state of a pipe with a seed for the running pass and one for the next."""
    if "next_seed" not in own:
        return own
    own = {**own, "epoch_seed": own["seed"], "seed": own["next_seed"]}
    del own["next_seed"]
    return {name: value for name, value in own.items() if (name, value) != ("rng", None)}


def _of_split(own: dict[str, Any], pipe: Any) -> dict[str, Any]:
    return {name: own[name] for name in ("reader", "rng", "weights", "remaining", "seed")}


def _of_paragraphs(own: dict[str, Any], pipe: Any) -> dict[str, Any]:
    return {"buffer": own["lines"], "path": own["path"]}


def _of_buckets(own: dict[str, Any], pipe: Any) -> dict[str, Any]:
    kept = {name: own[name] for name in ("batch", "tokens", "longest")}
    pairs = zip(own["lengths"], own["items"], strict=True)
    return {**kept, "heap": [pipe.measured(length, item) for length, item in pairs]}


def _of_key_zip(own: dict[str, Any], pipe: Any) -> dict[str, Any]:
    return {**own, "waiting": dict(own["waiting"])}


#: By class, what its state is called now, where that has changed.
_TRANSLATED: dict[str, Callable[[dict[str, Any], Any], dict[str, Any]]] = {
    "IterKeyZipper": _of_key_zip,
    "MaxTokenBucketizer": _of_buckets,
    "ParagraphAggregator": _of_paragraphs,
    "_SplitMain": _of_split,
}
