"""The shards of an epoch that resumes, for a loader with other workers or ranks than those that began it.

Role: pure functions over places (see `places`). A shard is a replica of the pipeline with its own worker info, random
streams and place. An epoch keeps the shards with which it began: a loader that resumes it deals them out to the workers
that it has, and the ranks take them in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from torchdata._engine.snapshots import seal, unseal

#: The class of the pipe with which an in-process service reads ahead.
AHEAD = "Prefetcher"

__all__ = ["AHEAD", "Shard", "among_ranks", "in_workers", "shards_of", "types_in"]


@dataclass(frozen=True)
class Shard:
    """One shard of an epoch.

    Args:
        worker: the number of the worker that began it, on its rank.
        workers: how many workers each rank had.
        rank: the number of that rank.
        ranks: how many ranks there were; 1 without ranks.
        of_main: whether no worker began it but the process of the loader, with the loader's own seeds.
        moved: whether it is divided by its own numbers rather than by this rank's, and its seeds follow from those of
            the job rather than of this rank.
        splits: whether it is one of a given number of splits.
    """

    worker: int
    workers: int
    rank: int = 0
    ranks: int = 1
    of_main: bool = False
    moved: bool = False
    splits: bool = False

    def of_rank(self, rank: int, ranks: int) -> Shard:
        """The same shard where another number of ranks has it."""
        return replace(self, rank=rank, ranks=ranks, moved=True)


def shards_of(place: Mapping[str, Any]) -> list[Shard]:
    """The shards of a rank that was at a place, in turn."""
    known = place.get("shards")
    if known is not None:
        return [Shard(*each) for each in known]
    if place["in_main"]:
        return [Shard(0, 1, of_main=True)]
    count, *_ = place["processes"]
    return [Shard(worker, count) for worker in range(count)]


def among_ranks(places: Mapping[int, dict[str, Any]], rank: int, ranks: int) -> tuple[dict[str, Any], list[Shard]]:
    """The place of one of another number of ranks, and its shards: it takes every `ranks`-th one of all.

    Args:
        places: the places of all ranks that there were, each in workers.
        rank: the number of this rank.
        ranks: how many there are now.

    Raises:
        ValueError: a rank was at an item that it had not given yet.
    """
    old = len(places)
    places = {number: _without_held(place) for number, place in places.items()}
    if any(place["workers"]["dispatches"] for place in places.values()):
        raise ValueError(
            "this state was saved inside an epoch with another number of ranks, each of which had a dispatching "
            "process. Load it with as many ranks, or save a state between two epochs"
        )
    by_rank = []
    for number, place in sorted(places.items()):
        shards = [each if each.moved else each.of_rank(number, old) for each in shards_of(place)]
        by_rank.append([*zip(shards, place["workers"]["workers"], strict=True)])
    # The turn goes round the ranks, and then on to the next shard of each.
    longest = max(map(len, by_rank))
    each = [(turn, shards[turn]) for turn in range(longest) for shards in by_rank if turn < len(shards)]
    own = each[rank::ranks]
    if not own:
        raise ValueError(
            f"this state has {len(each)} {'shard' if len(each) == 1 else 'shards'}, one for each worker of each rank "
            f"that saved it, so that rank {rank} of {ranks} gets none. Use as many ranks as there are shards, or fewer"
        )
    first = places[0]
    now = first["workers"]["turn"]
    turn = next((number for number, (at, _) in enumerate(own) if at >= now), 0)
    entries = [entry for _, (_, entry) in own]
    shards = [shard for _, (shard, _) in own]
    names = [list(astuple(shard)) for shard in shards]
    given = sum(entry["given"][0] for entry in entries)
    workers = {**first["workers"], "workers": entries, "turn": turn, "dispatching": None}
    processes = [len(own), False, first["workers"]["in_order"]]
    return {**first, "given": given, "workers": workers, "processes": processes, "shards": names}, shards


def _without_held(place: dict[str, Any]) -> dict[str, Any]:
    """The position after the items that were given. Shards compute again what pipes in main held.

    Raises:
        ValueError: it is not known which shards the held items are of.
    """
    if place["workers"] is None:
        raise ValueError(
            "this state was saved with another number of ranks, and there is no snapshot of the workers in it. Load it "
            "with as many ranks, or save a state between two epochs"
        )
    if not place["drop"] and place["graph"] is None:
        return place
    entries, given = place["workers"]["workers"], place["given"]
    read, count = sum(entry["given"][0] for entry in entries), len(entries)
    if any(entry["given"][0] != len(range(shard, read, count)) for shard, entry in enumerate(entries)):
        raise ValueError(
            "a pipe in the main process held items when this state was saved with another number of ranks, and some "
            "shards had ended. Load the state with as many ranks, or save one between two epochs"
        )
    anew = [{"given": (len(range(shard, given, count)), 0), "snapshot": None} for shard in range(count)]
    workers = {**place["workers"], "workers": anew, "turn": given % count}
    return {**place, "drop": 0, "graph": None, "generators": None, "workers": workers}


def in_workers(place: dict[str, Any], pipes: int | None, *, alone: bool = False) -> dict[str, Any]:
    """The place of a pipeline that ran in main, as that of one shard that a worker runs.

    Args:
        place: where main was.
        pipes: how many pipes the worker runs; the others stay in main. None if that is not known yet.
        alone: whether nothing that pipes of main have held may be part of it: then the shard begins anew, and makes
            the items again that were given.

    Raises:
        ValueError: the pipes drew seeds that workers do not have.
    """
    if place.get("own_seeds"):
        raise ValueError(
            "this state was saved in the main process, and this loader has workers. Without a reading service and "
            "without `seed()`, the pipes drew their seeds by themselves, and workers do not have these. Call "
            "`loader.seed(...)`, use an InProcessReadingService, or save the state between two epochs"
        )
    read, snapshot, graph = 0, None, None
    if place["graph"] is not None:
        saved = unseal(place["graph"], "the graph of this loader state")
        generators = unseal(place["generators"] or place["beginning"], "the generators of this loader state")
        own, others = saved["pipes"][:pipes], saved["pipes"][pipes:] if pipes is not None else []
        if others and others[0]["type"] == AHEAD:  # of an in-process service, which has put it there
            own, others = saved["pipes"][: len(own) + 1], others[1:]
        holds = bool(others)  # what they hold may be in a pickle
        read = own[-1].get("yielded", 0) if holds else place["given"] - place["drop"]
        content = seal({"graph": {**saved, "pipes": own}, "generators": generators})
        snapshot = None if alone and (holds or place["drop"]) else ((read, 0), 1, (0, 0), content)
        if holds and snapshot is not None:
            output = {"type": "WorkerOutput", "how": "restore", "yielded": read, "state": {}}
            graph = seal({**saved, "pipes": [output, *others]})
    workers = {
        "workers": [{"given": (place["given"] if alone and snapshot is None else read, 0), "snapshot": snapshot}],
        "turn": 0,
        "dispatches": False,
        "dispatching": None,
        "in_order": True,
    }
    drop = place["drop"] if snapshot is not None else 0 if alone else place["given"]
    moved = {**place, "drop": drop, "graph": graph, "generators": None, "beginning": None, "in_main": False}
    return {**moved, "workers": workers, "processes": [1, False, True], "shards": [[0, 1, 0, 1, True, False, False]]}


def types_in(sealed: bytes) -> list[str]:
    """The classes of the pipes of a graph whose state was sealed, sources first."""
    return [entry["type"] for entry in unseal(sealed, "the graph of this loader state")["pipes"]]
