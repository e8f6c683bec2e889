"""Places of an epoch for another number of workers, or of ranks: the units that are left, and the beginning of each
share.

Role: pure functions over places (see `places`) and a copy of the graph. Runs in main, when a state is loaded that was
saved with other processes. It returns a place like any other, in which no worker has given anything, and which has a
*base*: the units that were given before, and a snapshot of the graph before the division.

With ranks, each rank works out the whole: how far the others were follows from their states, or where it has but its
own, from the fact that all ranks take the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchdata._engine.snapshots import seal
from torchdata.dataloader2.graph.cutting import (
    DispatchedSource,
    cut_dispatched,
    find_replicable_branches,
    skipping_as_before,
)
from torchdata.dataloader2.state.dividing import (
    Dividing,
    content_of,
    find_division,
    items_before,
    required_division,
)
from torchdata.dataloader2.state.places import base_of, lasts
from torchdata.datapipes._pipe.division import Given, given_from
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.hooks import reads_per_item
from torchdata.datapipes.iter.ordering.sharding import SHARDING_PRIORITIES
from torchdata.datapipes.state import save_generators

__all__ = ["Shape", "divided_anew", "passed_over", "shape_of"]

_WAYS = "Load the state with the same number of workers and ranks, or one that was saved between two epochs"


@dataclass(frozen=True)
class Shape:
    """How many processes share the items.

    Args:
        workers: of each rank; 0 if the pipeline runs in main.
        dispatches: whether a dispatching process deals the items out to them.
        ranks: how many there are.
        rank: which one this is.
    """

    workers: int
    dispatches: bool
    ranks: int = 1
    rank: int = 0

    def __str__(self) -> str:
        workers = "no workers" if not self.workers else "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.ranks} ranks of {workers}" if self.ranks > 1 else workers


def shape_of(place: dict[str, Any], ranks: tuple[int, int] | None) -> Shape:
    """The shape of the loader whose place it is.

    Args:
        place: the place.
        ranks: the rank, and how many there were; None if there were none.
    """
    rank, world = ranks or (0, 1)
    workers, dispatches, _ = place.get("processes") or (0, False, True)
    return Shape(workers, dispatches, world, rank)


def divided_anew(
    places: Mapping[int, dict[str, Any]],
    old: Shape,
    new: Shape,
    graph: Any,
) -> dict[str, Any]:
    """The place from which loaders of another shape go on.

    Args:
        places: by rank, the places that are known: all of them, or the rank's own.
        old: the shape of the loaders that were there.
        new: that of the loader that goes on.
        graph: a copy of its pipeline, as it was before the service took it over.

    Raises:
        ValueError: something in the pipeline forbids it; the message says what.
    """
    change = f"this state was saved inside an epoch with {old}, and this loader has {new}. "
    try:
        whole = Graph(graph)
        if not lasts(whole) and not any(place["given"] or base_of(place) for place in places.values()):
            return _from_the_beginning(next(iter(places.values())), new)
        if bool(old.workers) != bool(new.workers):
            _require_movable(next(iter(places.values())), old.dispatches or new.dispatches)
        if old.dispatches != new.dispatches:
            had, has = ("a", "no") if old.dispatches else ("no", "a")
            raise ValueError(f"It had {had} dispatching process, but this pipeline has {has} one")
        return _Changing(places, old, new, _parts_of(whole, bool(new.workers))).place()
    except ValueError as error:
        raise ValueError(change + str(error)[:1].upper() + str(error)[1:]) from None


@dataclass(frozen=True)
class _Parts:
    """A graph by who runs it: what main reads, each worker's branch of it, what the dispatching process runs."""

    main: Graph
    branch: Graph
    dispatching: Graph | None


def _parts_of(graph: Graph, has_workers: bool) -> _Parts:
    if not has_workers:
        return _Parts(graph, graph, None)
    main, dispatching = cut_dispatched(graph)
    branches = find_replicable_branches(main)
    branch = skipping_as_before(main.at(branches[0]), main) if branches else graph
    return _Parts(main, branch, None if dispatching is None else skipping_as_before(dispatching, graph))


def passed_over(
    place: dict[str, Any], count: int, graph: Any, ranks: tuple[int, int, bool] | None = None
) -> dict[str, Any]:
    """The place of the same workers behind the next items, which are not made.

    Args:
        place: where they are, in strict order, with nothing held in main.
        count: how many items there are to pass over; there must be as many. Fewer are where each worker of several
            ranks is to keep its share: then the last one is the last of a round.
        graph: as for `divided_anew`.
        ranks: the rank, how many there are, and whether the epoch began without any; all pass over as many items, each
            of its own. None if there are none.

    Raises:
        ValueError: something in the pipeline forbids it.
    """
    shape = shape_of(place, None if ranks is None else ranks[:2])
    parts = _parts_of(Graph(graph), bool(shape.workers))
    changing = _Changing({shape.rank: place}, shape, shape, parts, passing=count, lives=True)
    changing.end_with_a_round()
    later = changing.place()
    return {**later, "given": later["given"] + changing.passing}


def _from_the_beginning(place: dict[str, Any], new: Shape) -> dict[str, Any]:
    """The place of an epoch of which no item was given, which any pipeline can begin anew."""
    return {**place, **_NOTHING_HELD, **_run_by(place, new)}


def _require_movable(place: dict[str, Any], dispatches: bool) -> None:
    """Raises ValueError if the main process and workers do not yield the same sequence."""
    if dispatches:
        raise ValueError(
            "A dispatching process reads what stands before the `sharding_round_robin_dispatch`, with seeds that the "
            "main process does not have. Use workers as before, share out by `sharding_filter`, or save the state "
            "between two epochs"
        )
    if place.get("own_seeds"):
        raise ValueError(
            "Without a reading service and without `seed()`, the pipes drew their seeds by themselves, and workers do "
            "not have these. Call `loader.seed(...)`, use an InProcessReadingService, or save the state between two "
            "epochs"
        )


#: Fields of a place that goes on by its workers, or its base, alone.
_NOTHING_HELD = {"drop": 0, "graph": None, "generators": None, "beginning": None}


def _run_by(place: dict[str, Any], new: Shape) -> dict[str, Any]:
    """Fields of a place that say which processes run the graph: workers of which none has given anything, or main."""
    if not new.workers:
        return {"workers": None, "in_main": True, "own_seeds": False}
    saved = place["workers"] or {"dispatches": new.dispatches, "in_order": True}
    worker = {"given": (0, 0), "snapshot": None}
    workers = {**saved, "workers": [worker] * new.workers, "turn": 0, "dispatching": None}
    return {"workers": workers, "in_main": False}


class _Changing:
    """One change from an old shape to a new one; the arguments are those of `divided_anew`, with the graph in parts.

    Args:
        passing: how many units more count as given, of each rank.
        lives: whether the processes live on, so that what lasts beyond an epoch is in them as of now.
    """

    def __init__(
        self,
        places: Mapping[int, dict[str, Any]],
        old: Shape,
        new: Shape,
        parts: _Parts,
        *,
        passing: int = 0,
        lives: bool = False,
    ) -> None:
        self.places, self.old, self.new, self.passing, self.lives = places, old, new, passing, lives
        self.own = places[new.rank] if new.rank in places else next(iter(places.values()))
        self.main, self.branch, self.dispatching = parts.main, parts.branch, parts.dispatching
        #: The graph that is divided among the ranks.
        self.divided = self.branch if self.dispatching is None else self.dispatching

    def place(self) -> dict[str, Any]:
        division = required_division(self.branch)
        if self.dispatching is not None and not isinstance(division.pipe, DispatchedSource):
            raise ValueError(
                "a `sharding_filter` stands behind `sharding_round_robin_dispatch`, which shares the items out: leave "
                "it out"
            )
        if self.old.workers and any(place["workers"] is None for place in self.places.values()):
            return self._made_again()
        among_workers = self.old.ranks == self.new.ranks and self._divides_workers_alone(division)
        if among_workers and self.old.workers and self.new.workers:
            return self._with(self._base_among_workers(division), self.own)
        self._require_counting_main()
        base = self._base_among_workers(division) if among_workers else self._base_among_ranks()
        return self._with(base, {**self.own, **_NOTHING_HELD})

    def end_with_a_round(self) -> None:
        """Makes `passing` less, so that what is left is shared out as before, if ranks and workers share as one."""
        if self.old.ranks == 1 or self._divides_workers_alone(required_division(self.branch)):
            return
        given = sum(worker["given"][0] for worker in self.own["workers"]["workers"])
        self.passing -= (given + self.passing) % self.old.workers
        if self.passing < 0:
            raise ValueError("the workers are in the middle of their round")

    def _made_again(self) -> dict[str, Any]:
        """The place of which nothing is known but how many items were given."""
        if self.old.ranks > 1 or self.new.ranks > 1 or not self.own["processes"][2]:
            raise ValueError(
                "It was taken while an item was being made, or as of many items ago: take the state between two items"
            )
        # The first ones of the epoch: they are made again, and dropped.
        return self.own if self.new.workers else {**self.own, **_run_by(self.own, self.new)}

    def _divides_workers_alone(self, division: Dividing) -> bool:
        """Whether what the workers share out is what the rank has got, however the ranks share."""
        if self.old.ranks == 1 or isinstance(division.pipe, DispatchedSource):
            return True
        return bool(division.pipe.sharding_group_filter == SHARDING_PRIORITIES.MULTIPROCESSING)

    def _with(self, base: dict[str, Any], place: dict[str, Any]) -> dict[str, Any]:
        place = {**place, **_run_by(place, self.new)}
        if self.new.workers:
            return {**place, "workers": {**place["workers"], "base": base}}
        return {
            **place,
            "graph": base["content"],
            "generators": seal(save_generators()),
            "base": {**base, "items": place["given"]},
        }

    # -- who divides what ------------------------------------------------------------------------------

    def _base_among_workers(self, division: Dividing) -> dict[str, Any]:
        """Where the workers of one rank, or of the only one, share out anew what the rank has got."""
        moved = not (self.old.workers and self.new.workers)
        shares = self._shares_of(self.own, self.own["drop"] if moved else 0)  # what main drops stays main's
        if isinstance(division.pipe, DispatchedSource):
            return self._behind_end(_given_at(self.own, "end").and_shares(shares).and_next(self.passing))
        if division.pipe.sharding_group_filter == SHARDING_PRIORITIES.DISTRIBUTED:
            raise ValueError(
                "the `ShardingFilter` divides the items among ranks alone, so that each worker yields them all"
            )
        given = _given_at(self.own, "filter").and_shares(shares).and_next(self.passing)
        return self._behind_filter(division, given, [self.own])

    def _base_among_ranks(self) -> dict[str, Any]:
        """Where all ranks share anew what they share out among them."""
        # The source of the dispatching process is shared out by rank; its own filter is looked for.
        division = required_division(self.divided) if self.dispatching is None else self._division_of_ranks()
        group = division.pipe.sharding_group_filter
        if group == SHARDING_PRIORITIES.MULTIPROCESSING:
            raise ValueError(
                "the ranks share out the items at another place than the workers. Use one `sharding_filter()` "
                "without a group for both"
            )
        if (
            group == SHARDING_PRIORITIES.DISTRIBUTED
            and self.dispatching is None
            and max(self.old.workers, self.new.workers) > 1
        ):
            raise ValueError(
                "the `ShardingFilter` divides the items among ranks alone, so that each worker yields them all"
            )
        known = _given_at(self.own, "filter")
        return self._behind_filter(division, known.and_shares(self._of_ranks()), list(self.places.values()))

    def _division_of_ranks(self) -> Dividing:
        found = None if self.dispatching is None else find_division(self.dispatching)
        if found is None:
            raise ValueError(
                "nothing before the dispatch divides the items among the ranks: put a `sharding_filter` before it"
            )
        return found

    def _of_ranks(self) -> list[Given]:
        """By shard, what was given of its units."""
        shares: list[Given] = []
        for rank in range(self.old.ranks):
            place = self._of(rank)
            own = self._shares_of(place, place["drop"] + self.passing)
            shares += own if self.dispatching is None else [_given_at(place, "end").and_shares(own)]
        return shares

    def _of(self, rank: int) -> dict[str, Any]:
        """The place of a rank, or the own one in its stead: in strict order all ranks are at the same."""
        if rank not in self.places and self.old.workers and not self.own["workers"]["in_order"]:
            raise ValueError(
                "With in_order=False nobody but the other ranks knows which items they gave: load the states of all "
                "ranks, load_state_dict({rank: state})"
            )
        return self.places.get(rank, self.own)

    def _shares_of(self, place: dict[str, Any], more: int) -> list[Given]:
        """By worker of a rank, how many units it gave; `more` were given after the place was looked at, in turn."""
        if not self.old.workers:
            return [Given(place["given"] - base_of(place).get("items", 0))]
        counts = [worker["given"][0] for worker in place["workers"]["workers"]]
        rounds, rest = divmod(more, len(counts))
        for each in range(rest):
            counts[(place["workers"]["turn"] + each) % len(counts)] += 1
        return [Given(count + rounds) for count in counts]

    def _require_counting_main(self) -> None:
        """Raises ValueError if a pipe in main keeps more of its rank's items than a number."""
        if not self.new.workers and not self.old.workers:
            return  # all stands behind the division then
        pipe = self.main.end
        while pipe is not self.branch.end:
            sources = self.main.sources(pipe)
            if reads_per_item(pipe) != 1 or len(sources) != 1:
                raise ValueError(
                    f"{type(pipe).__name__}, which stands behind the workers, keeps items of its rank, which are "
                    f"shared out anew. {_WAYS}"
                )
            pipe = sources[0]
        for place in self.places.values():
            if self.old.workers and place["graph"] is not None:
                names = [entry["type"] for entry in (content_of(place["graph"]) or {})["pipes"]]
                raise ValueError(
                    f"{' and '.join(names[names.index('WorkerOutput') + 1 :])}, behind the workers, hold items that "
                    f"were not given yet, and these are shared out anew. {_WAYS}"
                )

    # -- snapshots -------------------------------------------------------------------------------------

    def _behind_filter(self, division: Dividing, given: Given, places: list[dict[str, Any]]) -> dict[str, Any]:
        """The base at a filter, with the snapshot that has come furthest without going beyond what was given."""
        taken, entries, generators, refused = 0, None, None, False
        begin = given.first * division.block
        for place in places:
            for content in self._contents(place):
                before, found, drawn = self._before(division, content)
                if before is None or before > begin:
                    refused = True
                elif entries is None or before > taken:
                    taken, entries, generators = before, found, drawn
        if entries is None and (refused or self.lives):
            self._require_beginning(division.before)
        content = {"base": "filter", "entries": entries, "taken": taken, **_plain(given)}
        if self.dispatching is not None:  # of which the later passes of a shuffle take their seeds, alike on all ranks
            content["generators"] = generators
        return {"content": seal(content), "filter": _plain(given)}

    def _before(self, division: Dividing, content: dict[str, Any]) -> tuple[int | None, Any, Any]:
        """At a snapshot: how many items the division had taken, the state of the graph, and that of the generators."""
        if content.get("base") == "end":
            under = content_of(content["under"])
            return (0, None, None) if under is None else self._before(division, under)
        if content.get("base") == "filter":
            return content["taken"], content["entries"], content.get("generators")
        entries = content["graph"]["pipes"]
        # Where all is replayed, with the generators as the pass began with them.
        generators = entries[-1].get("generators", content.get("generators"))
        return items_before(division.before, entries), entries, generators

    def _contents(self, place: dict[str, Any]) -> list[dict[str, Any]]:
        """The snapshots of the divided graph, and where this run of it began."""
        workers = place["workers"]
        if workers is None:
            sealed = [place["graph"], base_of(place).get("content")]
        elif self.dispatching is not None:
            sealed = [_dealt(workers), base_of(place).get("content")]
        else:
            snapshots = [worker["snapshot"] for worker in workers["workers"]]
            sealed = [snapshot[3] for snapshot in snapshots if snapshot]
            sealed.append(base_of(place).get("content"))
        contents = [content_of(each) for each in sealed]
        # The state of main's graph is not in another dictionary yet.
        return [{"graph": each} if "pipes" in each else each for each in contents if each is not None]

    def _behind_end(self, given: Given) -> dict[str, Any]:
        """The base at the end of what the dispatching process runs."""
        workers = self.own["workers"]
        content = None
        for sealed in (_dealt(workers), base_of(self.own).get("content")):
            content = content_of(sealed)
            if content is None:
                continue
            if content.get("base") == "end":  # the same graph, of which more was given since
                return self._skipping(content["under"], given)
            if _passed_on(content) <= given.first:
                return self._skipping(sealed, given)
        if self.dispatching is not None and (content is not None or self.lives):
            self._require_beginning(self.dispatching)
        return self._skipping(None, given)

    def _skipping(self, under: bytes | None, given: Given) -> dict[str, Any]:
        content = {"base": "end", "under": under, **_plain(given)}
        before = _given_at(self.own, "filter")
        return {"content": seal(content), "filter": _plain(before), "end": _plain(given)}

    @staticmethod
    def _require_beginning(graph: Graph) -> None:
        """Raises ValueError if the beginning of an epoch does not follow from its seeds."""
        if lasts(graph):
            names = [type(each).__name__ for each in graph if lasts_itself(each, graph)]
            raise ValueError(
                f"{names[0]} keeps a state from epoch to epoch, and the snapshots are of later than what was given. "
                f"{_WAYS}"
            )


def lasts_itself(pipe: Any, graph: Graph) -> bool:
    """Whether a pipe of a graph has a state that outlives an epoch."""
    return lasts(graph.at(pipe)) and not any(lasts_itself(each, graph) for each in graph.at(pipe) if each is not pipe)


def _dealt(workers: dict[str, Any]) -> Any:
    dealt = workers["dispatching"]
    return None if dealt is None else dealt[2]


def _passed_on(content: dict[str, Any]) -> int:
    """How many items the end of a graph had yielded."""
    if content.get("base") == "filter":
        return 0
    end = content["graph"]["pipes"][-1]
    passed_on: int = end.get("yielded", 0) + end.get("drop", 0)
    return passed_on


def _plain(given: Given) -> dict[str, Any]:
    return {"first": given.first, "given": list(given.beyond)}


def _given_at(place: dict[str, Any], level: str) -> Given:
    """The units given before, of the sequence divided at the `filter`, or at the `end` of the dispatched graph."""
    found = base_of(place).get(level)
    return Given() if found is None else given_from(found["first"], found["given"])
