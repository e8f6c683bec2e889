"""States that go on with other numbers of workers and ranks: the global order of items stays, or a pipe is named."""

from __future__ import annotations

import pickle
import random
import warnings
from typing import Any

import pytest

import elastic_table
from rank_threads import ThreadGroup, in_ranks
from torchdata._engine import snapshots
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper

pytestmark = pytest.mark.alone

UNITS = 40


def plain(item: Any) -> Any:
    return item


def drawing(item: Any) -> Any:
    return item, random.random()


def some(item: Any) -> bool:
    return True


def several(item: Any) -> list[Any]:
    return [item]


def unpinned(item: Any, device: Any) -> Any:
    return item


class Silent(IterDataPipe):
    """A user's pipe that says nothing of itself."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        yield from self.source


class Declared(Silent):
    one_to_one = True

    def __iter__(self) -> Any:
        yield from self.source


class Replacing(Declared):
    """Replaces what its base has declared, and says nothing of it."""

    def __iter__(self) -> Any:
        yield from self.source


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "FACTOR", 0.0)


def shuffled(items: int = UNITS) -> Any:
    return IterableWrapper(range(items)).shuffle()


PIPES = {
    "filter": lambda: shuffled().map(plain).sharding_filter().map(plain),
    "batches": lambda: shuffled(3 * UNITS - 1).sharding_filter().batch(3).map(list),
    "dispatch": lambda: shuffled().sharding_filter().sharding_round_robin_dispatch().map(plain),
}


def loader(pipe: Any, workers: int, state: Any = None, block: int = 3, **options: Any) -> DataLoader2[Any]:
    made = DataLoader2(pipe, ShardingPolicy(block), MultiProcessingReadingService(workers, **options))
    if state is None:
        made.seed(3)
    else:
        made.load_state_dict(state)
    return made


def saved(made: DataLoader2[Any]) -> Any:
    return pickle.loads(pickle.dumps(made.state_dict()))


def block_of(kind: str) -> int:
    return 3 if kind == "batches" else 1


def stopped(pipe: Any, workers: int, count: int, **options: Any) -> Any:
    """The state after so many items."""
    with loader(pipe, workers, **options) as made:
        reading = iter(made)
        for _ in range(count):
            next(reading)
        return saved(made)


@pytest.mark.parametrize(("kind", "at"), [*((kind, 5) for kind in PIPES), ("filter", 0), ("filter", UNITS)])
def test_a_state_goes_through_any_numbers_of_workers_in_the_same_order(kind: str, at: int) -> None:
    pipe, block = PIPES[kind], block_of(kind)
    with loader(pipe(), 2, block=block) as made:
        whole, following = list(made), list(made)
    got: list[Any] = []
    state, steps = None, [at, 3, 0, 5]
    for workers, step in zip([3, 1, 8, 4], steps, strict=True):
        with loader(pipe(), workers, state, block=block) as made:
            reading = iter(made)
            got += [next(reading) for _ in range(min(step, UNITS - len(got)))]
            state = saved(made)
    with loader(pipe(), 1, state, block=block) as made:
        assert got + list(made) == whole
        assert list(made) == following


@pytest.mark.parametrize("kind", PIPES)
def test_in_a_later_epoch_and_as_of_some_items_ago(kind: str) -> None:
    pipe, block = PIPES[kind], block_of(kind)
    with loader(pipe(), 2, block=block) as made:
        list(made)
        whole = list(made)
    with loader(pipe(), 4, block=block) as made:
        list(made)
        reading = iter(made)
        for _ in range(11):
            next(reading)
        state = made.state_dict(items_ago=4)
    with loader(pipe(), 3, state, block=block) as made:
        assert list(made) == whole[7:]


def test_a_partial_last_batch_is_made_once_or_dropped() -> None:
    for drop_last in False, True:
        state = stopped(shuffled(20).sharding_filter().batch(3, drop_last=drop_last), 2, 3)
        with loader(shuffled(20).sharding_filter().batch(3, drop_last=drop_last), 3, state) as made:
            assert list(map(len, made)) == [3, 3, 3] + [2] * (not drop_last)


@pytest.mark.parametrize("kind", [kind for kind in PIPES if kind != "dispatch"])  # which deals to whoever is free
def test_out_of_order_nothing_is_lost_or_twice(kind: str) -> None:
    pipe, block = PIPES[kind], block_of(kind)
    with loader(pipe(), 1, block=block) as made:
        whole = sorted(made)
    got: list[Any] = []
    state = None
    for workers in 4, 3, 2:
        with loader(pipe(), workers, state, block=block, in_order=False) as made:
            reading = iter(made)
            got += [next(reading) for _ in range(9)]
            state = saved(made)
    with loader(pipe(), 5, state, block=block, in_order=False) as made:
        assert sorted(got + list(made)) == whole


def test_pipes_in_main_go_on_with_what_they_hold() -> None:
    def pipe() -> Any:
        return shuffled().sharding_filter().map(plain).pin_memory(pin_memory_fn=unpinned).batch(3)

    with loader(pipe(), 2, block=1) as made:
        whole = list(made)
    state = stopped(pipe(), 2, 4, block=1)
    with loader(pipe(), 3, state, block=1) as made:
        assert list(made) == whole[4:]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_any_start_method_and_items_that_are_read_by_index(method: str) -> None:
    def pipe() -> Any:
        return SequenceWrapper(range(30)).shuffle().sharding_filter().map(abs)

    state = stopped(pipe(), 2, 5, block=1)
    with loader(pipe(), 3, state, block=1, multiprocessing_context=method) as made:
        rest = list(made)
    with loader(pipe(), 1, block=1) as made:
        assert list(made)[5:] == rest


def test_functions_behind_the_shard_draw_other_numbers_for_the_same_items() -> None:
    with loader(shuffled().sharding_filter().map(drawing), 2, block=1) as made:
        whole = list(made)
    state = stopped(shuffled().sharding_filter().map(drawing), 2, 6, block=1)
    with loader(shuffled().sharding_filter().map(drawing), 3, state, block=1) as made:
        rest = list(made)
    assert [item for item, _ in rest] == [item for item, _ in whole[6:]]
    assert rest != whole[6:]


@pytest.mark.parametrize("kind", PIPES)
def test_items_that_were_skipped_count_as_given(kind: str) -> None:
    pipe, block = PIPES[kind], block_of(kind)
    with loader(pipe(), 2, block=block) as made:
        whole = list(made)
    state = stopped(pipe(), 2, 5, block=block)
    with loader(pipe(), 3, state, block=block) as made:
        made.skip(4)
        reading = iter(made)
        assert [next(reading) for _ in range(2)] == whole[9:11]
        state = saved(made)
    with loader(pipe(), 4, state, block=block) as made:
        assert list(made) == whole[11:]


#: Sources that seek, below a pipe that begins them with its first item.
LATE = {
    "a shuffled map pipe": lambda: Declared(SequenceWrapper(range(UNITS)).shuffle().sharding_filter()),
    "one that is read twice": lambda: Declared(SequenceWrapper(range(15)).shuffle().cycle(2).sharding_filter()),
    "a range": lambda: Declared(IterableWrapper(range(UNITS)).sharding_filter()),
}


@pytest.mark.parametrize("kind", LATE)
def test_items_are_skipped_before_workers_have_begun_where_they_go_on(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SECONDS", 1000.0)  # what goes on begins at the beginning, and passes over
    with loader(LATE[kind](), 2, block=1) as made:
        whole, following = list(made), list(made)
    state = stopped(LATE[kind](), 2, 3, block=1)
    for workers, skips in [(1, [0, 20]), (2, [2]), (3, [1, 1, 3]), (3, [0, 20])]:
        with loader(LATE[kind](), workers, state, block=1) as made:
            iter(made)
            assert [made.skip(count) for count in skips] == skips
            assert list(made) == whole[3 + sum(skips) :], (workers, skips)
            assert list(made) == following, (workers, skips)


def test_before_the_first_item_any_pipeline_takes_other_workers() -> None:
    def pipe() -> Any:
        return shuffled().sharding_filter().shuffle()

    state = stopped(pipe(), 2, 0, block=1)
    with loader(pipe(), 3, state, block=1) as made, loader(pipe(), 3, block=1) as other:
        assert list(made) == list(other)


@pytest.mark.parametrize(
    ("pipe", "block", "message"),
    [
        (
            lambda: shuffled().sharding_filter().shuffle(),
            1,
            "Shuffler, which stands behind the sharding.*Put it before the sharding",
        ),
        (
            lambda: shuffled().sharding_filter().in_memory_cache(),
            1,
            "InMemoryCacheHolder, which stands behind",
        ),
        (lambda: shuffled().sharding_filter().filter(some), 1, "Filter, which stands behind"),
        (lambda: shuffled().sharding_filter().flatmap(several), 1, "FlatMapper, which stands behind"),
        (lambda: shuffled().sharding_filter().cycle(2), 1, "Cycler, which stands behind"),
        (lambda: shuffled().sharding_filter().enumerate(), 1, "Enumerator, which stands behind"),
        (
            lambda: shuffled().sharding_filter().zip(shuffled().sharding_filter()),
            1,
            "Zipper, which stands behind",
        ),
        (lambda: Silent(shuffled().sharding_filter()), 1, "Silent, which stands behind.*one_to_one = True"),
        (
            lambda: Replacing(shuffled().sharding_filter()),
            1,
            "Replacing, which stands behind.*one_to_one = True",
        ),
        (
            lambda: shuffled().sharding_filter().batch(4),
            1,
            r"deals out blocks of 1, and Batcher.*ShardingPolicy\(block=4\)",
        ),
        (
            lambda: shuffled().sharding_filter(),
            3,
            r"blocks of 3, and nothing makes batches.*ShardingPolicy\(block=None\)",
        ),
        (
            lambda: shuffled().sharding_round_robin_dispatch().batch(2),
            1,
            "Batcher makes batches of what a worker was dealt",
        ),
        (lambda: shuffled().sharding_round_robin_dispatch().filter(some), 1, "Filter, which stands behind"),
        (lambda: shuffled(), 1, "No `sharding_filter` and no `sharding_round_robin_dispatch`"),
        (lambda: shuffled().sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED), 1, "among ranks alone"),
    ],
)
def test_what_forbids_another_number_of_workers_is_named(pipe: Any, block: int, message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = stopped(pipe(), 2, 3, block=block)
        with loader(pipe(), 3, state, block=block) as made:
            for _ in range(2):  # no other epoch begins in its stead
                with pytest.raises(
                    ValueError, match=f"saved inside an epoch with 2 workers, and this loader has 3.*{message}"
                ):
                    iter(made)
        with loader(pipe(), 2, state, block=block) as made:
            next(iter(made))


def test_a_declared_pipe_and_sharding_switched_off() -> None:
    state = stopped(Declared(shuffled().sharding_filter()), 2, 3, block=1)
    with loader(Declared(shuffled().sharding_filter()), 3, state, block=1) as made:
        assert len(list(made)) == UNITS - 3
    off = ShardingPolicy(enable=False)
    with DataLoader2(shuffled().sharding_filter(), off, MultiProcessingReadingService(2)) as made:
        next(iter(made))
        state = saved(made)
    with DataLoader2(shuffled().sharding_filter(), off, MultiProcessingReadingService(3)) as made:
        made.load_state_dict(state)
        with pytest.raises(ValueError, match="`ShardingFilter` is switched off"):
            iter(made)


# -- ranks -----------------------------------------------------------------------------------------------------


def service(group: ThreadGroup, workers: int) -> Any:
    ranks = DistributedReadingService(30, process_group=group)
    return SequentialReadingService(ranks, MultiProcessingReadingService(workers)) if workers else ranks


def read(kind: str, ranks: int, workers: int, state: Any, count: int | None) -> tuple[list[list[Any]], dict[int, Any]]:
    """The items of each rank, and their states."""

    def body(group: ThreadGroup) -> tuple[list[Any], Any]:
        with DataLoader2(PIPES[kind](), ShardingPolicy(block_of(kind)), service(group, workers)) as made:
            if state is None:
                made.seed(3)
            else:
                made.load_state_dict(state(group.rank) if callable(state) else state)
            reading = iter(made)
            got = list(reading) if count is None else [next(reading) for _ in range(count)]
            return got, saved(made)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # services that keep no state
        found = in_ranks(ranks, body)
    return [got for got, _ in found], {rank: state for rank, (_, state) in enumerate(found)}


def dealt(left: list[Any], kind: str, ranks: int, workers: int) -> list[list[Any]]:
    """The items that are left, as ranks and their workers share them out."""
    workers = 1 if kind == "dispatch" else max(1, workers)
    shares: list[list[Any]] = [[] for _ in range(ranks)]
    for place, unit in enumerate(left):
        shares[place % (ranks * workers) // workers].append(unit)
    shortest = min(map(len, shares))
    return [share[:shortest] for share in shares]


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("filter", [(2, 2), (1, 3), (4, 2), (2, 1)]),
        ("batches", [(1, 2), (2, 2), (4, 1)]),
        ("dispatch", [(2, 2), (1, 3), (4, 2), (2, 1)]),
    ],
)
def test_ranks_share_out_what_is_left_in_the_global_order(kind: str, shapes: list[tuple[int, int]]) -> None:
    left = read(kind, 1, 1, None, None)[0][0]
    state = None
    for ranks, workers in shapes:
        got, state = read(kind, ranks, workers, state, 3)
        assert got == [share[:3] for share in dealt(left, kind, ranks, workers)]
        left = [unit for unit in left if not any(unit in each for each in got)]
    assert read(kind, 1, 2, state, None)[0] == [left]


@pytest.mark.parametrize("kind", ["filter", "batches"])
def test_ranks_without_workers(kind: str) -> None:
    left = read(kind, 1, 0, None, None)[0][0]
    state = None
    for ranks in 2, 4, 1, 3:
        got, state = read(kind, ranks, 0, state, 2)
        assert got == [share[:2] for share in dealt(left, kind, ranks, 0)]
        left = [unit for unit in left if not any(unit in each for each in got)]
    assert read(kind, 1, 0, state, None)[0] == [left]


def test_with_as_many_ranks_each_one_may_load_its_own_state_for_other_workers() -> None:
    whole = read("filter", 1, 1, None, None)[0][0]
    got, states = read("filter", 2, 2, None, 3)
    left = [unit for unit in whole if not any(unit in each for each in got)]
    assert read("filter", 2, 3, states.__getitem__, None)[0] == dealt(left, "filter", 2, 3)


def test_ranks_come_to_a_loader_that_had_none_and_go() -> None:
    with DataLoader2(PIPES["filter"](), None, MultiProcessingReadingService(2)) as made:
        made.seed(3)
        whole = list(made)
    with DataLoader2(PIPES["filter"](), None, MultiProcessingReadingService(2)) as made:
        made.seed(3)
        reading = iter(made)
        first = [next(reading) for _ in range(5)]
        state = saved(made)
    got, states = read("filter", 2, 1, state, 2)
    left = whole[5:]
    assert first == whole[:5]
    assert got == [share[:2] for share in dealt(left, "filter", 2, 1)]
    with DataLoader2(PIPES["filter"](), None, MultiProcessingReadingService(3)) as made:
        made.load_state_dict(states)
        reading = iter(made)
        assert [next(reading) for _ in range(3)] == left[4:7]
        state = saved(made)
    with DataLoader2(PIPES["filter"](), None, InProcessReadingService()) as made:
        made.load_state_dict(state)
        assert list(made) == left[7:]
    with DataLoader2(PIPES["filter"](), None, MultiProcessingReadingService(1)) as made:
        made.load_state_dict(state)
        assert list(made) == left[7:]


def test_states_that_do_not_belong_together_are_refused() -> None:
    _, states = read("filter", 2, 1, None, 3)
    _, later = read("filter", 2, 1, None, 4)
    _, others = read("filter", 3, 1, None, 3)
    made = DataLoader2(PIPES["filter"](), None, MultiProcessingReadingService(2))
    for wrong, message in [
        ({0: states[0]}, "saved by 2 ranks, but the states of rank 1 are missing"),
        ({**states, 2: states[1]}, "given as the state of rank 2 was saved by rank 1"),
        ({0: states[1], 1: states[0]}, "given as the state of rank 0 was saved by rank 1"),
        ({0: states[0], 1: others[1]}, r"different numbers of ranks: \[2, 3\]"),
        ({0: states[0], 1: later[1]}, "different moments: after 3 items of an epoch, and after 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            made.load_state_dict(wrong)
    made.load_state_dict(states[1])
    with pytest.raises(ValueError, match="saved by rank 1 of 2, and this is no rank.*{rank: state}"):
        iter(made)
    made.shutdown()
    with pytest.raises(ValueError, match="saved by rank 0 of 2, and this is rank 1 of 2"):
        read("filter", 2, 1, states[0], 1)
    with pytest.raises(ValueError, match="saved by rank 0 of 2, and this is rank . of 4"):
        read("filter", 4, 1, states[0], 1)


@pytest.mark.parametrize("kind", elastic_table.KINDS)
def test_each_topology_goes_on_from_another_one(kind: str) -> None:
    """A cut of the whole table: each of at most eight workers once as source and once as target.

    Larger ones, each pair and each position are elsewhere.
    """
    topologies = [each for each in elastic_table.TOPOLOGIES if each[0] * each[1] <= 8]
    positions, kinds = list(elastic_table.POSITIONS), list(elastic_table.KINDS)
    own = kinds.index(kind)
    for number in range(own, len(topologies), len(kinds)):
        source, target = topologies[number], topologies[(7 * number + 3) % len(topologies)]
        position = positions[(number // len(kinds) + 2 * own) % len(positions)]
        assert elastic_table.check_source(kind, source, [target], [position]) == (1, [])


# -- whole plans -----------------------------------------------------------------------------------------------
