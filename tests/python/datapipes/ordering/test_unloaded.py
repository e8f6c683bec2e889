"""Workers distribute the indices of a dataset before they load the items."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipes_of_users import plus_one
from process_checks import loader
from random_graphs.users import Passing
from resuming import with_state
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.dataloader2.graph import traverse_dps
from torchdata.dataloader2.graph.settings import apply_sharding
from torchdata.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper, Mapper, Shuffler
from torchdata.datapipes.map import MapDataPipe, SequenceWrapper
from torchdata.datapipes.state import save_state

COUNT = 23


class Recorded:
    def __init__(self, path: Path, count: int = COUNT) -> None:
        self.path, self.count = path, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(index)
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        return 10 * index

    def loaded(self) -> list[int]:
        found = [*map(int, self.path.read_text().split())] if self.path.exists() else []
        self.path.unlink(missing_ok=True)
        return sorted(found)


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "loaded")


class MyShuffler(Shuffler):
    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()


class MyMapper(Mapper):
    pass


class Squares(MapDataPipe):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __getitem__(self, index: int) -> int:
        return int(self.source[index]) ** 2

    def __len__(self) -> int:
        return len(self.source)


BY_INDEX: dict[str, Callable[[Any], Any]] = {
    "by index": lambda s: SequenceWrapper(s).to_iter_datapipe(),
    "some indices": lambda s: SequenceWrapper(s).to_iter_datapipe(indices=[5, 3, 8, 1, 0]),
    "shuffled by index": lambda s: SequenceWrapper(s).shuffle(),
    "sampled": lambda s: SequenceWrapper(s).sample_by([*range(0, COUNT, 2), *range(1, COUNT, 2)]),
    "mapped by index": lambda s: SequenceWrapper(s).map(plus_one).shuffle(),
    "a pipe of one's own": lambda s: Squares(SequenceWrapper(s)).shuffle(),
    "shuffled by a buffer": lambda s: SequenceWrapper(s).to_iter_datapipe().shuffle(buffer_size=5),
    "shuffled, mapped, shuffled": lambda s: SequenceWrapper(s).shuffle().map(plus_one).shuffle().map(plus_one),
    "batched by index": lambda s: SequenceWrapper(s).batch(2).shuffle(),
    "an iterable with a length": lambda s: IterableWrapper(s).shuffle().map(plus_one),
}

#: Pipelines that must load items before they can divide them among the workers.
BY_ITEM: dict[str, Callable[[Any], Any]] = {
    "filtered": lambda s: SequenceWrapper(s).shuffle().filter(lambda item: item % 20 == 0),
    "unfolded": lambda s: SequenceWrapper(s).shuffle().flatmap(lambda item: [item, item]),
    "batched": lambda s: SequenceWrapper(s).shuffle().batch(3),
    "numbered": lambda s: SequenceWrapper(s).shuffle().enumerate(),
    "shared": lambda s: (lambda a, b: a.zip(b))(*SequenceWrapper(s).shuffle().fork(2)),
    "cached": lambda s: SequenceWrapper(s).shuffle().in_memory_cache(),
    "a subclass that overrides": lambda s: MyShuffler(SequenceWrapper(s).to_iter_datapipe()),
    "a subclass": lambda s: MyMapper(SequenceWrapper(s).shuffle(), plus_one),
}


@pytest.mark.parametrize(("kind", "workers"), [*((kind, 2) for kind in BY_INDEX), (next(iter(BY_INDEX)), 3)])
def test_each_item_is_loaded_once_by_all_workers_and_is_unchanged(kind: str, workers: int, recorded: Recorded) -> None:
    orders = []
    for hide in (Passing, lambda pipe: pipe):
        with loader(hide(BY_INDEX[kind](recorded)).sharding_filter(), workers) as loading:
            loading.seed(4)
            recorded.loaded()
            epochs = []
            for _ in range(2):
                epochs.append(list(loading))
                loaded = recorded.loaded()
                whole = sorted(set(loaded))
                assert loaded == (sorted(whole * workers) if hide is Passing else whole)
            orders.append(epochs)
    assert orders[0] == orders[1]


@pytest.mark.parametrize("build", BY_ITEM.values(), ids=BY_ITEM)
def test_shares_are_unchanged_if_a_pipe_inspects_items(build: Callable[[Any], Any], recorded: Recorded) -> None:
    orders = []
    for hide in (Passing, lambda pipe: pipe):
        with loader(hide(build(recorded)).sharding_filter(), 2) as loading:
            loading.seed(4)
            orders.append([list(loading), list(loading)])
    assert orders[0] == orders[1]
    assert all(orders[0])


def filtered_twice(source: Any) -> Any:
    ranks, workers = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING
    return source.sharding_filter(ranks).shuffle().sharding_filter(workers)


@pytest.mark.parametrize(
    "build", [lambda s: s.sharding_filter(), filtered_twice], ids=["one filter", "one for each group"]
)
def test_ranks_and_their_workers_load_their_shares(build: Callable[[Any], Any], recorded: Recorded) -> None:
    for hide in (Passing, lambda pipe: pipe):
        shares = []
        for rank in range(2):
            for worker in range(3):
                pipe = build(hide(SequenceWrapper(recorded).shuffle().set_seed(2)))
                apply_sharding(pipe, 2, rank, SHARDING_PRIORITIES.DISTRIBUTED)
                apply_sharding(pipe, 3, worker, SHARDING_PRIORITIES.MULTIPROCESSING)
                for shuffler in filter(lambda p: isinstance(p, Shuffler), graph_of(pipe)):
                    shuffler.set_seed(rank)
                shares.append(list(pipe))
        loaded = recorded.loaded()
        if hide is Passing:
            expected = shares
    assert shares == expected
    assert loaded == [*range(COUNT)]


def graph_of(pipe: Any) -> list[Any]:
    from torchdata.dataloader2.graph import list_dps

    return list_dps(traverse_dps(pipe))


def test_blocks_are_shares_of_indices(recorded: Recorded) -> None:
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService

    pipe = SequenceWrapper(recorded).to_iter_datapipe().sharding_filter().batch(4)
    service = MultiProcessingReadingService(3, multiprocessing_context="fork")
    with DataLoader2(pipe, ShardingPolicy(block=4), service) as loading:
        assert [item for batch in loading for item in batch] == [10 * n for n in range(COUNT)]
    assert recorded.loaded() == [*range(COUNT)]


def test_a_second_reader_of_the_same_pipe_gets_items(recorded: Recorded) -> None:
    shared = SequenceWrapper(recorded).to_iter_datapipe().shuffle().set_shuffle(False)
    both = shared.sharding_filter()
    both.apply_sharding(2, 1)
    assert list(both.concat(shared)) == [10 * n for n in [*range(1, COUNT, 2), *range(COUNT)]]


@pytest.mark.parametrize("build", BY_INDEX.values(), ids=BY_INDEX)
def test_the_position_is_saved_and_restored_at_every_item(build: Callable[[Any], Any], recorded: Recorded) -> None:
    def made() -> Any:
        pipe = build(recorded).sharding_filter()
        pipe.apply_sharding(2, 1)
        for member in graph_of(pipe):
            if hasattr(type(member), "set_seed"):
                member.set_seed(3)
        return pipe

    whole = list(made())
    for index in range(len(whole) + 1):
        pipe = made()
        items = iter(pipe)
        assert [next(items) for _ in range(index)] == whole[:index]
        state = pickle.dumps(save_state(pipe))
        other = with_state(made(), pickle.loads(state))
        recorded.loaded()
        assert list(other) == whole[index:]
        assert len(recorded.loaded()) <= 2 * (len(whole) - index), "dropped items are not loaded"


def test_a_buffer_of_items_in_a_state_is_restored_among_more_workers(recorded: Recorded) -> None:
    def made(workers: int) -> Any:
        pipe = SequenceWrapper(recorded).to_iter_datapipe().shuffle(buffer_size=6).set_seed(1).sharding_filter()
        pipe.apply_sharding(workers, 0)
        return pipe

    for before, after in ((1, 2), (2, 1)):
        pipe = made(before)
        items = iter(pipe)
        taken = [next(items) for _ in range(4)]
        rest = list(made(1))[before * 3 + 1 :]
        other = with_state(made(after), save_state(pipe))
        assert taken == list(made(before))[:4]
        first = (-(before * 3 + 1)) % after
        assert list(other) == rest[first::after]


def test_an_error_names_the_pipe_that_loads_or_maps() -> None:
    def fail(item: int) -> int:
        raise KeyError(item)

    for pipe, name in (
        (SequenceWrapper([1, 2, 3]).map(fail).shuffle(), "fail ("),  # the shuffler calls `fail` by index
        (SequenceWrapper([1, 2, 3]).to_iter_datapipe().map(fail), "Mapper"),
    ):
        shard = pipe.sharding_filter()
        shard.apply_sharding(2, 1)
        with pytest.raises(KeyError) as failure:
            list(shard)
        [note] = failure.value.__notes__
        assert note.startswith(f"This exception was raised while {name}")
