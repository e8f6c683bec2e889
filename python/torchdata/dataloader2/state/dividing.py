"""Where a graph is divided, and whether what stands behind that lets it be divided anew in the middle of an epoch.

Role: looks at graphs, and puts fresh ones behind what was given of the divided sequence. Runs in main, which finds out
whether a state fits another number of workers or ranks, and in the processes that go on from such a state.

Behind the division each item must follow from one unit of the sequence, in order: then what the user was given tells
which units are left. A pipe that mixes several, or leaves some out, stands in the way, and is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchdata._engine.snapshots import unseal
from torchdata.dataloader2.graph.cutting import DispatchedSource
from torchdata.dataloader2.state.advancing import advance
from torchdata.datapipes._pipe.division import Given, given_from
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.skipping import skipper_of
from torchdata.datapipes._pipe.state.hooks import reads_per_item
from torchdata.datapipes.iter.ordering.sharding import ShardingFilter
from torchdata.datapipes.state import entry_anew, entry_at, forget_state, load_entries, standing_still

__all__ = ["Dividing", "begin_behind", "find_division", "items_before", "required_division"]

#: Shipped pipes that read ahead, and hold an error that they meet until it is its turn.
_READING_AHEAD = ("Prefetcher", "PinMemory", "FullSync", "ThreadPoolMapper")

_REMEDY = (
    "Put it before the sharding; or load the state with the same number of workers and ranks, or one that was saved "
    "between two epochs"
)


@dataclass(frozen=True)
class Dividing:
    """The place at which a graph is divided.

    Args:
        before: the graph that ends there.
        behind: the pipes behind it, from the end of the graph on.
    """

    before: Graph
    behind: list[Any]

    @property
    def pipe(self) -> Any:
        """The pipe there: a `ShardingFilter`, or the `DispatchedSource` of a worker's graph."""
        return self.before.end

    @property
    def block(self) -> int:
        """Items of a unit."""
        block: int = getattr(self.pipe, "_block", 1)
        return block


def find_division(graph: Graph) -> Dividing | None:
    """The place at which a graph is divided; None if it is not.

    Raises:
        ValueError: a pipe behind it forbids that it is divided anew; the message names it.
    """
    if not any(map(_divides, graph)):
        return None
    skipper = skipper_of(graph)
    if skipper is not None:
        raise ValueError(
            f"{_name(skipper)} leaves items out that raise, so that it is not known which items of the source the "
            "others have had. Go on with as many workers and ranks as before"
        )
    pipe, behind, batched, batchers = graph.end, [], 1, []
    while not _divides(pipe):
        count = reads_per_item(pipe)
        if count is None:
            raise ValueError(_refusal(pipe, graph))
        if count > 1:
            batched *= count
            batchers.append(pipe)
        sources = graph.sources(pipe)
        if len(sources) != 1:
            raise ValueError(_refusal(pipe, graph))
        behind.append(pipe)
        pipe = sources[0]
    _check_units(pipe, batched, batchers)
    return Dividing(graph.at(pipe), behind)


def required_division(graph: Graph) -> Dividing:
    """The same where there must be one.

    Raises:
        ValueError: there is none; or a pipe forbids it.
    """
    found = find_division(graph)
    if found is None:
        raise ValueError(
            f"no `sharding_filter` and no `sharding_round_robin_dispatch` divides the items that {_name(graph.end)} "
            "yields, so that each worker or rank yields them all"
        )
    return found


def _divides(pipe: Any) -> bool:
    """Whether it is a place of which the sequence is shared out. Pipes of the user's, and of torch's, do not count."""
    return type(pipe) in (ShardingFilter, DispatchedSource)


def _check_units(divider: Any, batched: int, batchers: list[Any]) -> None:
    """Raises ValueError if what stands behind the division makes no whole units into items."""
    if isinstance(divider, DispatchedSource):
        if batchers:
            raise ValueError(
                f"{_name(batchers[0])} makes batches of what a worker was dealt item by item. Put it before the "
                "dispatch, or share out by `sharding_filter` with `ShardingPolicy(block)`"
            )
        return
    if not divider._sharding_enabled:
        raise ValueError("the `ShardingFilter` is switched off, so that all workers and ranks yield all items")
    if divider._block != batched:
        what = f"{_name(batchers[0])} makes batches of {batched} items" if batchers else "nothing makes batches"
        raise ValueError(
            f"the `ShardingFilter` deals out blocks of {divider._block}, and {what} after it, so the batches depend on "
            "the number of workers. Use as many workers and ranks as before. The adapter "
            f"ShardingPolicy(block={batched if batchers else None}) helps the next run: batches do not depend on the "
            "number of workers in epochs that began with it"
        )


def _refusal(pipe: Any, graph: Graph) -> str:
    own = not type(pipe).__module__.startswith(("torchdata.", "torch."))
    declared = (
        " If each of its items follows from one item of its source, in order, say so: `one_to_one = True`; if from n "
        "of them, say n by `reads_per_item`."
    )
    several = len(graph.sources(pipe)) > 1 and reads_per_item(pipe) is not None
    why = "reads several pipes" if several else "does not make each item of one item of its source"
    return (
        f"{_name(pipe)}, which stands behind the sharding, {why}: its items depend on how many workers or ranks "
        f"there are. {_REMEDY}.{declared if own else ''}"
    )


def _name(pipe: Any) -> str:
    return type(pipe).__name__


# -- going on ----------------------------------------------------------------------------------------------


def items_before(before: Graph, entries: list[dict[str, Any]]) -> int | None:
    """How many items of the divided sequence had been taken when the state of a graph was saved.

    Args:
        before: the graph up to the `ShardingFilter` at which it is divided. The pipes behind it may be others.
        entries: the state.

    Returns:
        None if nothing can go on there before the division.

    Raises:
        ValueError: it is the state of another graph.
    """
    pipes = before.pipes  # with which the list begins, because one after the other stands behind
    if [entry["type"] for entry in entries[: len(pipes)]] != list(map(_name, pipes)):
        raise ValueError(
            "what stands before the sharding is not what it was: a function of the reading service (`worker_init_fn`, "
            "`worker_reset_fn`) changes the pipeline"
        )
    entry = entries[len(pipes) - 1]
    if any(each.get("finished") or _holds_error(each) for each in entries[len(pipes) - 1 :]):
        return None  # what stands before is to begin the next pass, or goes on behind what has failed
    if entry["how"] == "begin":
        return 0
    taken: int = entry["state"]["taken"]
    return taken


def _holds_error(entry: dict[str, Any]) -> bool:
    """Whether a pipe that reads ahead had met an error when its state was saved."""
    if entry["type"] not in _READING_AHEAD or entry["how"] != "restore":
        return False
    return "error" not in entry["state"] or entry["state"]["error"] is not None  # one is no plain data


def begin_behind(end: Any, base: dict[str, Any]) -> None:
    """Puts a graph where its units are shared anew, whatever was read of it before.

    Args:
        end: the end of the graph.
        base: what was given: `first` and `given`, in blocks; and how the graph stood before the division when `taken`
            items of it had been taken, as `entries` of a graph like this, or None if it had not begun.

    Raises:
        ValueError: a pipe of the graph forbids that; or it is another graph.
    """
    graph = Graph(end)
    found = required_division(graph)
    before = found.before.pipes[:-1]
    given = given_from(base["first"], base["given"])
    taken = base["taken"]
    begin = given.first * found.block
    with standing_still(graph.pipes):
        if base["entries"] is not None:
            items_before(found.before, base["entries"])
            load_entries(zip(before, base["entries"], strict=False))
        else:  # neither what is left of an earlier pass is gone on with, nor what was loaded for one
            forget_state(found.pipe.source_datapipe)
            load_entries([(pipe, entry_anew(pipe)) for pipe in before])
        if begin > taken:
            taken += advance(found.pipe.source_datapipe, begin - taken, reading=False) or 0
        state = {"taken": taken, "first": given.first, "beyond": list(given.beyond)}
        load_entries([(found.pipe, entry_at(found.pipe, state))])
        load_entries([(pipe, entry_at(pipe)) for pipe in reversed(found.behind)])


def skipping(iterator: Iterator[Any], skip: dict[str, Any], entries: list[dict[str, Any]] | None) -> Iterator[Any]:
    """The items of a graph that are left after those that were given.

    Args:
        iterator: the graph's.
        skip: `first` and `given`.
        entries: the state from which the graph goes on, if any.
    """
    end = {} if entries is None else entries[-1]
    taken = end.get("yielded", 0) + end.get("drop", 0)
    given: Given = given_from(skip["first"], skip["given"])
    return given.left_of(iterator, taken)


def content_of(sealed: bytes | None, what: str = "a snapshot of this state") -> dict[str, Any] | None:
    """A snapshot, or where an earlier run has shared anew."""
    if sealed is None:
        return None
    content: dict[str, Any] = unseal(sealed, what)
    return content
