"""`DataLoader2.skip` on ranks, each of which passes over its own items, with and without workers below."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from test_skipping import PIPES, Counting

from rank_threads import ThreadGroup, in_ranks
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.adapter import ShardingPolicy

pytestmark = pytest.mark.alone

RANKS = 2
#: Pipelines whose items are shared out among ranks, and workers of each rank; "ahead" is none, and a thread that reads
#: ahead.
CASES = [
    *((kind, 0) for kind in ("a range", "data read by index", "a shuffled map pipe", "a pipe without a state")),
    *((kind, 2) for kind in ("a range", "batches", "a function of many items", "a pipe without a state")),
    *((kind, "ahead") for kind in ("batches", "a shuffle buffer", "a function of many items")),
]


def loader(pipe: Any, group: ThreadGroup | None, workers: Any, state: Any = None) -> DataLoader2[Any]:
    services: list[Any] = [] if group is None else [DistributedReadingService(60, process_group=group)]
    if workers == "ahead":
        services.append(InProcessReadingService(prefetch_cnt=2))
    elif workers:
        services.append(MultiProcessingReadingService(workers, worker_prefetch_cnt=1, main_prefetch_cnt=0))
    block = ShardingPolicy(2) if type(pipe).__name__ == "Batcher" else None
    made = DataLoader2(pipe, block, SequentialReadingService(*services))
    if state is None:
        made.seed(5)
    else:
        made.load_state_dict(state)
    return made


@pytest.mark.parametrize(("kind", "workers"), CASES)
def test_each_rank_goes_on_behind_its_own_items(kind: str, workers: Any, tmp_path: Path) -> None:
    build, *_ = PIPES[kind]
    place = 0 if kind == "batches" else 3

    def body(group: ThreadGroup) -> None:
        def pipe(name: str) -> Any:
            return build(Counting(tmp_path / f"{name} {group.rank}"))

        with loader(pipe("whole"), group, workers) as made:
            whole, following = list(made), list(made)
        counting = Counting(tmp_path / f"skipped {group.rank}")
        with loader(pipe("skipped"), group, workers) as made:
            reading = iter(made)
            got = [next(reading) for _ in range(place)]
            assert made.skip(30) == 30
            got += [next(reading) for _ in range(2)]
            group.broadcast(0)
            if kind != "a pipe without a state":
                # Before and behind what was skipped: items, and as many as anybody may read ahead, with and without it.
                most = place + 2 + 2 * (2 * 3 if workers == 2 else 2 + 2)
                # Batches are of two items, and what is counted stands before the filter, where each worker reads all.
                shards = RANKS * (2 if workers == 2 else 1)
                assert len(counting.asked) <= most * (2 * shards if kind == "batches" else 1)
            assert made.skip(3) == 3
            state = pickle.loads(pickle.dumps(made.state_dict()))
            rest = list(reading)
            assert got + rest == whole[:place] + whole[place + 30 : place + 32] + whole[place + 35 :]
            assert list(made) == following
        with loader(pipe("resumed"), group, workers, state) as made:
            assert list(made) == rest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        in_ranks(RANKS, body)


@pytest.mark.parametrize(
    ("kind", "workers"),
    [("a range", 0), ("a range", 2), ("a function of many items", 2), ("a function of many items", "ahead")],
)
def test_there_may_be_fewer_on_all_ranks(kind: str, workers: Any, tmp_path: Path) -> None:
    build, *_ = PIPES[kind]

    def body(group: ThreadGroup) -> None:
        def pipe() -> Any:
            return build(Counting(tmp_path / f"items {group.rank}"))

        with loader(pipe(), group, workers) as made:
            whole, following = list(made), list(made)
        with loader(pipe(), group, workers) as made:
            reading = iter(made)
            assert [next(reading) for _ in range(4)] == whole[:4]
            assert made.skip(1000) == len(whole) - 4
            assert list(reading) == []
            assert list(made) == following

    in_ranks(RANKS, body)


def test_other_ranks_and_workers_go_on_behind_what_was_skipped(tmp_path: Path) -> None:
    def pipe() -> Any:
        return PIPES["a range"][0](Counting(tmp_path / "items"))

    def body(group: ThreadGroup) -> tuple[list[int], Any]:
        with loader(pipe(), group, 2) as made:
            reading = iter(made)
            made.skip(7)
            return [next(reading) for _ in range(2)], pickle.loads(pickle.dumps(made.state_dict()))

    found = in_ranks(RANKS, body)
    # Rank r has two workers of four: 18 of its 50 places were given.
    given = {item for rank in range(RANKS) for item in [i for i in range(200) if i % 4 // 2 == rank][:9]}
    assert [got for got, _ in found] == [[13, 16], [15, 18]]
    with loader(pipe(), None, 3, {rank: state for rank, (_, state) in enumerate(found)}) as made:
        assert list(made) == [item for item in range(200) if item not in given]
