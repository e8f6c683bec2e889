"""Distributes the shards of a resumed epoch, if the number of workers or ranks has changed.

Role: a shard moves as a whole, so each item of an epoch stays in its shard. The shards are distributed in turn among
the ranks, and each rank distributes its shards among its workers.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchdata.dataloader2.state.layout import sealed
from torchdata.dataloader2.state.position import Content, Position, Processes, Shard, ShardPosition, WorkersPosition
from torchdata.datapipes._pipe.state.layout import PipeEntry

#: The class of the pipe that an in-process service appends to read ahead.
AHEAD = "Prefetcher"


def among_ranks(positions: Mapping[int, Position], rank: int, ranks: int) -> Position:
    """Returns the position of a rank after the saved shards were distributed among `ranks` ranks."""
    old, by_rank = len(positions), []
    for number, position in sorted(positions.items()):
        workers = _without_held(position)
        if workers.dispatches:
            raise ValueError(
                "this state was saved inside an epoch with another number of ranks, each of which had a dispatching "
                "process. Load it with the same number of ranks, or save a state between two epochs"
            )
        shards = [each if each.moved else each.of_rank(number, old) for each in position.all_shards]
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
    entries = [entry for _, (_, entry) in own]
    return positions[0]._replace(
        given=sum(entry.given[0] for entry in entries),
        drop=0,
        graph=None,
        generators=None,
        workers=WorkersPosition(entries, turn, False, None, first.in_order),
        processes=Processes(len(own), False, first.in_order),
        shards=[shard for _, (shard, _) in own],
    )


def _without_held(position: Position) -> WorkersPosition:
    """Subtracts from the workers' positions the items that pipes in the main process still buffer. Raises ValueError if
    it is unknown which shards have yielded the buffered items.
    """
    workers, given = position.workers, position.given
    if workers is None:
        raise ValueError(
            "this state was saved with another number of ranks, and it does not contain a snapshot of the workers. "
            "Load it with the same number of ranks, or save a state between two epochs"
        )
    read, count = sum(entry.given[0] for entry in workers.shards), len(workers.shards)
    if not position.drop and (position.graph is None or read == given):
        return workers
    if any(entry.given[0] != len(range(shard, read, count)) for shard, entry in enumerate(workers.shards)):
        raise ValueError(
            "a pipe in the main process held items when this state was saved with another number of ranks, and some "
            "shards had ended. Load the state with the same number of ranks, or save a state between two epochs"
        )
    anew = [ShardPosition((len(range(shard, given, count)), 0)) for shard in range(count)]
    return workers._replace(shards=anew, turn=given % count)


def in_workers(position: Position, pipes: int | None, *, alone: bool = False) -> Position:
    """Converts a position that was saved without workers to the position of one shard in a worker.

    Args:
        pipes: how many of the graph's first pipes run in the worker, if known; later pipes run in the main process.
        alone: whether to omit the state of pipes that run in the main process. If the omitted pipes have a state, the
            result contains no snapshot, and the shard recomputes the epoch from its beginning.

    Raises:
        ValueError: the pipes drew their own seeds, which workers cannot repeat.
    """
    if position.own_seeds:
        raise ValueError(
            "this state was saved in the main process, and this loader has workers. Without a reading service and "
            "without `seed()`, the pipes drew their seeds by themselves, and workers do not have these. Call "
            "`loader.seed(...)`, use an InProcessReadingService, or save the state between two epochs"
        )
    read, snapshot, graph = 0, None, None
    if position.graph is not None:
        entries, generators = position.graph, position.generators or position.beginning
        if generators is None:
            raise ValueError("the generators of this loader state are missing")
        own, others = entries[:pipes], entries[pipes:] if pipes is not None else []
        if others and others[0].type == AHEAD:  # `InProcessReadingService` has appended this pipe to read ahead
            own, others = entries[: len(own) + 1], others[1:]
        holds = bool(others)
        read = own[-1].yielded if holds else position.given - position.drop
        content = sealed(Content(own, generators, read_out=position.ended))
        snapshot = None if alone and (holds or position.drop) else ((read, 0), 1, (0, 0), content)
        if holds and snapshot is not None:
            output = PipeEntry("WorkerOutput", restores=True, yielded=read, finished=position.ended, state={})
            graph = [output, *others]
    shard = ShardPosition((position.given if alone and snapshot is None else read, 0), snapshot)
    return position._replace(
        drop=position.drop if snapshot is not None else 0 if alone else position.given,
        graph=graph,
        generators=None,
        beginning=None,
        in_main=False,
        workers=WorkersPosition([shard], 0, False, None, in_order=True),
        processes=Processes(1, False, True),
        shards=[Shard(0, 1, of_main=True)],
    )
