"""Distributes the shards of a resumed epoch, if the number of workers or ranks has changed.

A shard moves as a whole, so each item of an epoch stays in its shard. The shards are distributed in turn among the
ranks, and each rank distributes its shards among its workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import Any

from torchdata._plain_pickles import from_plain, seal, to_plain
from torchdata.dataloader2.state.layout import sealed
from torchdata.dataloader2.state.position import Content, Position, Shard, ShardPosition, WorkersPosition
from torchdata.datapipes._pipe.graph.graph import Graph
from torchdata.datapipes._pipe.state.iteration import name_of
from torchdata.datapipes._pipe.state.layout import HeldItems, PipeEntry, explaining_damage
from torchdata.datapipes.state import beginning_entries

#: The classes of the pipes that reading services append to a graph. These pipes read ahead.
_APPENDED = frozenset({"Prefetcher", "FullSync"})


def among_ranks(positions: Mapping[int, Position], rank: int, ranks: int) -> Position:
    """Distributes the shards in `positions` among `ranks` ranks, and returns the position of the rank `rank`."""
    by_rank = []
    for number, position in sorted(positions.items()):
        workers = _without_held(position)
        if workers.dispatches:
            raise ValueError(
                "this state was saved inside an epoch with another number of ranks, each of which had a dispatching "
                "process. Load it with the same number of ranks, or save a state between two epochs"
            )
        shards = [each if each.moved else each.of_rank(number, len(positions)) for each in position.all_shards]
        by_rank.append([*zip(shards, workers.shards, strict=True)])
    # The shards of all ranks are put in one order: first the first shard of each rank, then the second shard of each
    # rank, and so on.
    longest = max(map(len, by_rank))
    each = [(turn, shards[turn]) for turn in range(longest) for shards in by_rank if turn < len(shards)]
    own = each[rank::ranks]
    if not own:
        raise ValueError(
            f"this state has {len(each)} {'shard' if len(each) == 1 else 'shards'}, one for each worker of each rank "
            f"that saved it, so that rank {rank} of {ranks} gets none. Use at most as many ranks as there are shards"
        )
    first = _without_held(positions[0])
    turn = next((number for number, (at, _) in enumerate(own) if at >= first.turn), 0)
    return positions[0]._replace(
        received=-(-sum(position.received for position in positions.values()) // ranks),  # equal on all ranks
        drop=0,
        graph=None,
        generators=None,
        without_held=None,
        workers=WorkersPosition([entry for _, (_, entry) in own], turn, False, None),
        shards=[shard for _, (shard, _) in own],
    )


def _without_held(position: Position) -> WorkersPosition:
    """Returns the positions of the shards, without the items that pipes in the main process buffer.

    Raises ValueError if the positions without the buffered items are unknown.
    """
    workers = position.workers if position.graph is None and not position.drop else position.without_held
    if workers is None and position.ended:
        raise ValueError(
            "this state was saved between two epochs with another number of ranks, and pipes in the main process keep "
            "a state from epoch to epoch, which belongs to one rank. Load it with the same number of ranks, or move "
            "these pipes before the first pipe of the main process"
        )
    if workers is None:
        raise cannot_move()
    return workers


def cannot_move() -> ValueError:
    return ValueError(
        "this state was saved inside an epoch with another number of ranks, and the pipes in the main process do not "
        "yield one item for each item of the workers, for example `.batch(2)`, or hold items that cannot be "
        "recomputed. Load it with the same number of ranks, save a state between two epochs, or move these pipes "
        "before the first pipe of the main process"
    )


def in_workers(position: Position, pipes: int | None, *, alone: bool = False, keeps: bool = False) -> Position:
    """Converts a position that was saved without workers to the position of one shard in a worker.

    Args:
        pipes: how many of the graph's first pipes run in the worker, if known; later pipes run in the main process.
        alone: whether to omit the state of pipes that run in the main process. If the pipes that `alone` omits have a
            state, the result contains no snapshot, and the shard recomputes the epoch from its beginning.
        keeps: whether the worker's pipes may keep state from earlier epochs, which a recomputation does not restore.

    Raises:
        ValueError: the pipes drew their own seeds, which workers cannot repeat, or the state of earlier epochs is lost.
    """
    if position.own_seeds:
        raise ValueError(
            "this state was saved in the main process, and this loader has workers. Without a reading service and "
            "without `seed()`, the pipes drew their own seeds, which the workers do not have. Call "
            "`loader.seed(...)`, use an InProcessReadingService, or save the state between two epochs"
        )
    read, graph, snapshot = 0, None, None
    if position.beginning is not None:  # functions may draw random numbers when the epoch is recomputed
        snapshot = ((0, 0), 1, (0, 0), seal(position.beginning))
    if position.graph is not None:
        entries, generators = position.graph, position.generators or position.beginning
        if generators is None:
            raise ValueError("the generators of this loader state are missing")
        own, others = entries[:pipes], entries[pipes:] if pipes is not None else []
        # Pipes that the saved run's service had appended also run in the shard, because their queues contain items.
        while others and others[0].type in _APPENDED:
            own, others = [*own, others[0]], others[1:]
        received = position.received - position.drop
        read = own[-1].yielded if others else received
        content = sealed(Content(own, generators, read_out=position.ended))
        is_ahead = alone and read > received and not position.ended
        if is_ahead and keeps:
            raise cannot_move()
        if not is_ahead:
            snapshot = ((read, 0), 1, (0, 0), content)
        if others and not alone:
            output = PipeEntry("WorkerOutput", restores=True, yielded=read, finished=position.ended, state={})
            graph = [output, *others]
    shard = ShardPosition((position.received if alone and not position.ended else read, 0), snapshot)
    return position._replace(
        drop=0 if alone else position.drop,
        graph=graph,
        generators=None,
        beginning=None,
        in_main=False,
        workers=WorkersPosition([shard], 0, False, None),
        shards=[Shard(0, 1, of_main=True)],
    )


def in_main(position: Position, graph: Graph) -> Position:
    """Converts a position that a loader with workers saved between two epochs to a position of a graph in the main
    process. The pipes that ran in the workers begin a new iteration.
    """
    _, *own = position.graph or ()
    after = len(_user_pipes([entry.type for entry in own]))
    in_workers = len(_user_pipes([*map(name_of, graph)])) - after
    return position._replace(in_main=True, graph=[*beginning_entries(graph)[:in_workers], *own])


def _user_pipes(names: list[str]) -> list[str]:
    """Returns the names of pipes, last pipe first, without the pipes that reading services may have appended."""
    return [*dropwhile(_APPENDED.__contains__, reversed(names))]


def fitted(datapipe: Any, entries: Sequence[PipeEntry]) -> tuple[Any, Sequence[PipeEntry]]:
    """Returns a graph's last pipe and the saved states, adapted if the saved run's reading service had appended other
    pipes.

    Items in the buffers of the saved run's appended pipes move to the first appended pipe of this graph, or to a new
    `prefetch`.
    """
    names = [*map(name_of, Graph(datapipe))]
    equal = [*takewhile(lambda pair: pair[0] == pair[1].type, zip(names, entries, strict=False))]
    own, saved = names[len(equal) :], entries[len(equal) :]
    is_replayed = any(entry.generators is not None for entry in entries)
    if is_replayed and not own and _APPENDED.issuperset(entry.type for entry in saved):
        for _ in saved:  # a replay needs the same threads, because functions draw random numbers in them
            datapipe = datapipe.prefetch()
        return datapipe, [*entries[: len(equal)], *(entry._replace(type="Prefetcher") for entry in saved)]
    if (is_replayed and saved) or not _APPENDED.issuperset([*own, *(entry.type for entry in saved)]):
        return datapipe, entries  # `load_entries` raises an error if the pipes differ
    held: list[Any] = []
    error = None
    for entry in reversed(saved):  # the last pipe held the next items
        if error is None and entry.state:
            with explaining_damage(entry.type):
                items, error = HeldItems(**from_plain(entry.state, entry.type))
                held = [*held, *items]
    if not own and (held or error is not None):
        datapipe, own = datapipe.prefetch(), ["Prefetcher"]
    end, found = entries[-1], [*entries[: len(equal)]]
    if end.finished and not own:
        last = found[-1]
        state = last.state or (to_plain({"items": [], "error": None}, last.type) if last.type in _APPENDED else {})
        found[-1] = last._replace(restores=True, yielded=end.yielded, finished=True, state=state)
    restores, yielded = (end.restores, end.yielded) if end.drop is None else (True, end.drop)
    for name in own:
        state = to_plain({"items": held, "error": error}, name)
        found.append(PipeEntry(name, restores, yielded, end.finished, state if restores else None))
        held, error = [], None
    return datapipe, found
