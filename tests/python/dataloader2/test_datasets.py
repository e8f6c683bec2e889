"""Loaders accept plain datasets, samplers and generator functions instead of pipes."""

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from families import Mapped
from process_checks import loader
from refusals import refuses
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.dataloader2.linter import lint
from torchdata.datapipes import iter as iter_pipes
from torchdata.datapipes.map import Concater as MapConcater
from torchdata.datapipes.map import SequenceWrapper
from torchdata.datapipes.map import Zipper as MapZipper
from torchdata.datapipes.state import load_state, save_state


def Tens(count: int = 5) -> Mapped:
    """Returns a map-style dataset that, like many torch datasets, raises no IndexError for an index beyond its end."""
    return Mapped((10).__mul__, count)


class Counted:
    def __init__(self, count: int = 5) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def three() -> Iterator[int]:
    yield from range(3)


def up_to(count: int) -> Iterator[int]:
    yield from range(count)


@pytest.mark.parametrize("deepcopy", [True, False])
def test_a_dataset_without_iter_is_read_by_index_up_to_its_length(deepcopy: bool) -> None:
    pipe = iter_pipes.IterableWrapper(Tens(), deepcopy=deepcopy)
    assert list(itertools.islice(pipe, 99)) == [0, 10, 20, 30, 40]
    assert len(pipe) == 5
    items = iter(pipe)
    next(items)
    other = iter_pipes.IterableWrapper(Tens(), deepcopy=deepcopy)
    load_state(other, save_state(pipe))
    assert list(itertools.islice(other, 99)) == [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Tens(), [0, 10, 20, 30, 40]),
        (Counted(), [0, 1, 2, 3, 4]),
        ([3, 1], [3, 1]),
        (range(3), [0, 1, 2]),
        (three, [0, 1, 2]),
        (SequenceWrapper("abc"), ["a", "b", "c"]),
    ],
    ids=["by index", "iterable", "list", "range", "generator function", "map pipe"],
)
def test_a_loader_takes_a_data_set(dataset: Any, expected: list[Any]) -> None:
    assert list(DataLoader2(dataset)) == expected
    with DataLoader2.from_dataset(dataset, num_workers=2) as loading:
        assert list(loading) == list(loading) == expected


def test_datasets_can_be_used_among_pipes() -> None:
    ints = iter_pipes.IterableWrapper(range(5))
    assert list(ints.zip(Tens())) == [(n, 10 * n) for n in range(5)]
    assert list(ints.concat(Counted(2), Tens(2))) == [0, 1, 2, 3, 4, 0, 1, 0, 10]
    assert list(ints.mux(Tens(1))) == [0, 0]
    assert sorted(iter_pipes.SampleMultiplexer({Tens(2): 1, Counted(2): 1}, seed=0)) == [0, 0, 1, 10]
    assert list(iter_pipes.IterKeyZipper(ints, Counted(), key_fn=int)) == [(n, n) for n in range(5)]
    assert list(iter_pipes.MapKeyZipper(ints, Tens(), key_fn=int)) == [(n, 10 * n) for n in range(5)]
    assert list(MapZipper(Tens(2), Tens()).to_iter_datapipe()) == [(0, 0), (10, 10)]
    assert list(MapConcater(SequenceWrapper("a"), Tens(2))) == ["a", 0, 10]
    assert list(iter_pipes.IterableWrapper([5]).mux_longest(three)) == [5, 0, 1, 2]


@pytest.mark.parametrize("function", [three, functools.partial(up_to, 3)])
def test_a_generator_function_is_called_again_in_each_epoch(function: Any) -> None:
    pipe = iter_pipes.IterableWrapper(function)
    assert list(pipe) == list(pipe) == [0, 1, 2]
    items = iter(pipe)
    next(items)
    other = iter_pipes.IterableWrapper(function)
    load_state(other, save_state(pipe))
    assert list(other) == [1, 2]
    with pytest.raises(TypeError, match="valid length"):
        len(pipe)


class Drawn:
    def __init__(self, count: int, lazy: bool = False) -> None:
        self.count, self.lazy = count, lazy

    def __iter__(self) -> Iterator[int]:
        if self.lazy:
            return (random.randrange(self.count) for _ in range(self.count))
        return iter(random.sample(range(self.count), self.count))


class Sized(Drawn):
    def __len__(self) -> int:
        return self.count


class Numbered:
    epoch = 3

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch])


@pytest.mark.parametrize(("method", "sampler"), [("fork", Sized(12)), ("spawn", Drawn(12))], ids=["fork", "spawn"])
def test_workers_share_the_order_of_a_sampler(sampler: Any, method: str) -> None:
    pipe = SequenceWrapper(Tens(12)).sample_by(sampler).sharding_filter()
    with loader(pipe, 3, multiprocessing_context=method) as loading:
        loading.seed(1)
        first, second = list(loading), list(loading)
        loading.seed(1)
        assert [list(loading), list(loading)] == [first, second]
    assert sorted(first) == sorted(second) == [10 * n for n in range(12)]
    assert first != second


@pytest.mark.parametrize("sampler", [Drawn(9), Drawn(9, lazy=True), Sized(9)], ids=["whole", "lazy", "with length"])
def test_the_order_of_a_sampler_depends_on_the_seed_and_not_on_the_generator(sampler: Any) -> None:
    pipe = SequenceWrapper(Tens(9)).sample_by(sampler)
    random.seed(0)
    state = random.getstate()
    orders = [list(pipe.set_seed(seed)) for seed in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]
    assert random.getstate() == state
    for index in range(10):
        pipe.set_seed(1)
        items = iter(pipe)
        head = [next(items) for _ in range(index)]
        other = SequenceWrapper(Tens(9)).sample_by(sampler)
        load_state(other, save_state(pipe))
        assert head + list(other) == orders[0]


def test_a_sampler_receives_the_number_of_the_epoch() -> None:
    pipe = SequenceWrapper(Tens()).sample_by(Numbered())
    assert [list(pipe) for _ in range(3)] == [[30], [40], [50]]


def test_a_sampler_determines_the_length() -> None:
    assert len(SequenceWrapper(Tens()).sample_by(Sized(3))) == 3
    with pytest.raises(TypeError, match="valid length"):
        len(SequenceWrapper(Tens()).sample_by(Drawn(3)))
    assert lint(SequenceWrapper(Tens()).sample_by(Sized(3)).sharding_filter()) == []


def test_the_samplers_of_torch_determine_the_order() -> None:
    data = pytest.importorskip("torch").utils.data
    pipe = SequenceWrapper(Tens(6)).sample_by(data.RandomSampler(range(6))).sharding_filter()
    with loader(pipe, 2) as loading:
        orders = [list(loading) for _ in range(3)]
    assert all(sorted(order) == [0, 10, 20, 30, 40, 50] for order in orders)
    assert len(set(map(tuple, orders))) > 1
    sampler = data.DistributedSampler(range(6), num_replicas=2, rank=1, shuffle=False)
    assert list(SequenceWrapper(Tens(6)).sample_by(sampler)) == [10, 30, 50]


@pytest.mark.parametrize(
    "dataset", [Tens(11), Counted(11), iter_pipes.IterableWrapper(range(11))], ids=["by index", "iterable", "pipe"]
)
def test_batches_do_not_depend_on_the_number_of_workers(dataset: Any) -> None:
    def batches(workers: int, **options: Any) -> list[list[list[int]]]:
        with DataLoader2.from_dataset(dataset, 4, num_workers=workers, collate_fn=list, **options) as loading:
            return [list(loading), list(loading)]

    items = sorted(itertools.chain(*batches(0)[0]))
    for options in ({"drop_last": True}, {"shuffle": True, "seed": 3}):
        expected = batches(1, **options)
        for workers in (0, 3):
            found = batches(workers, **options)
            assert found[0] == expected[0]
            assert found == expected or (workers == 0 and "seed" in options), "only workers share later seeds"
            assert [len(batch) for batch in found[1]] == [4, 4, 3][: 2 if "drop_last" in options else 3]
            assert (found[0] != found[1]) == ("seed" in options)
            if "drop_last" not in options:
                assert sorted(itertools.chain(*found[1])) == items


def test_batches_become_arrays_and_single_items_stay_unchanged(no_torch: None) -> None:
    assert [batch.tolist() for batch in DataLoader2.from_dataset(Tens(3), batch_size=2)] == [[0, 10], [20]]
    assert list(DataLoader2.from_dataset(Tens(3))) == [0, 10, 20]
    assert list(DataLoader2.from_dataset(Tens(3), collate_fn=str)) == ["0", "10", "20"]


def test_a_sampler_or_a_service_can_be_passed() -> None:
    assert list(DataLoader2.from_dataset(Tens(), sampler=[4, 0])) == [40, 0]
    service = MultiProcessingReadingService(2, multiprocessing_context="fork")
    with DataLoader2.from_dataset(Tens(), reading_service=service) as loading:
        assert list(loading) == [0, 10, 20, 30, 40]


def made_of(data: Any = None, **options: Any) -> Callable[[], Any]:
    return lambda: DataLoader2.from_dataset(Tens() if data is None else data, **options)


NO_LENGTH = type("NoLength", (), {"__getitem__": lambda self, index: index})()
test_wrong_arguments_are_refused_with_what_to_do = refuses(
    *((made_of(data), TypeError, "loads a dataset .* wrap it in") for data in (5, {"a": 1}, "text", NO_LENGTH)),
    (made_of(iter([1])), TypeError, "loads a dataset .* wrap it in"),
    (made_of(batch_size=0), ValueError, "batch_size must be at least 1"),
    (made_of(batch_size="2"), TypeError, "batch_size must be an integer"),
    (made_of(drop_last=True), ValueError, "needs a batch_size"),
    (made_of(shuffle=True, sampler=[1]), ValueError, "shuffle must be False"),
    (made_of(collate_fn=5), TypeError, "collate_fn must be a function"),
    (made_of(num_workers=-1), ValueError, "num_workers must be at least 0"),
    (made_of(num_workers=2, reading_service=MultiProcessingReadingService(1)), ValueError, "not both"),
    (made_of(Counted(), sampler=[1]), ValueError, "can only be iterated"),
    (lambda: iter_pipes.IterableWrapper([1]).zip([1]), TypeError, "input 1"),
    (lambda: iter_pipes.IterableWrapper([1]).concat("a"), TypeError, "input 1"),
    (lambda: SequenceWrapper([1]).zip({"a": 1}), TypeError, "input 1"),
    (lambda: iter_pipes.IterableWrapper(len), TypeError, "call it"),
    (lambda: iter_pipes.IterableWrapper(lambda item: item), TypeError, "call it"),
    (lambda: iter_pipes.IterableWrapper(up_to), TypeError, r"'count'; bind it with functools.partial"),
    (lambda: SequenceWrapper(Tens()).sample_by(iter([1])), TypeError, "can be read once"),
    (lambda: SequenceWrapper(Tens()).sample_by(5), TypeError, "sampler must be iterable"),
)


def own_share(count: int) -> Iterator[int]:
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    yield from range(count) if info is None else range(info.id, count, info.num_workers)


class Splitting:
    def __iter__(self) -> Iterator[int]:
        return own_share(10)


class SplittingPipe(iter_pipes.IterDataPipe):
    def __iter__(self) -> Iterator[int]:
        yield from own_share(10)


class AskingForEach:
    def __iter__(self) -> Iterator[int]:
        from torch.utils.data import get_worker_info

        for number in range(10):
            info = get_worker_info()
            if info is None or number % info.num_workers == info.id:
                yield number


def with_worker(item: int) -> tuple[int, int]:
    from torch.utils.data import get_worker_info

    return item, get_worker_info().id


ALL = list(range(10))

SPLITTING: dict[str, Any] = {
    "an iterable": lambda: iter_pipes.IterableWrapper(Splitting()),
    "asked for each": lambda: iter_pipes.IterableWrapper(AskingForEach()),
    "a generator function": lambda: iter_pipes.IterableWrapper(functools.partial(own_share, 10)),
    "read ahead": lambda: iter_pipes.IterableWrapper(Splitting()).prefetch(2),
    "a pipe": lambda: SplittingPipe(),
    "joined": lambda: iter_pipes.IterableWrapper(Splitting()).zip(iter_pipes.IterableWrapper(range(10))).map(max),
}


@pytest.mark.parametrize("source", SPLITTING)
def test_a_filter_loses_nothing_of_sources_that_divide_themselves(source: str) -> None:
    data, pipe = pytest.importorskip("torch").utils.data, SPLITTING[source]().sharding_filter()
    with loader(pipe) as loading:
        assert sorted(loading) == sorted(loading) == ALL
    if source == "a pipe":
        assert sorted(data.DataLoader(pipe, batch_size=None, num_workers=2)) == ALL


def test_iterable_datasets_and_pipes_of_torch_yield_all_items() -> None:
    data = pytest.importorskip("torch").utils.data

    class Set(data.IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return own_share(10)

    class Pipe(data.IterDataPipe):
        def __iter__(self) -> Iterator[int]:
            yield from own_share(10)

    for pipe in (iter_pipes.IterableWrapper(Set()).sharding_filter(), iter_pipes.ShardingFilter(Pipe()), Set()):
        with loader(pipe) as loading:
            assert sorted(loading) == ALL
    with DataLoader2.from_dataset(Set(), num_workers=2) as loading:
        assert sorted(loading) == ALL
    assert list(DataLoader2(Set())) == ALL


def test_sources_that_divide_themselves_see_their_worker_with_and_without_a_filter() -> None:
    pytest.importorskip("torch")
    splitting = iter_pipes.IterableWrapper(Splitting())
    ranks = splitting.sharding_filter(iter_pipes.SHARDING_PRIORITIES.DISTRIBUTED)
    for pipe in (splitting, ranks, splitting.map(int).sharding_filter().prefetch(2)):
        with loader(pipe.map(with_worker)) as loading:
            assert sorted(loading) == [(n, n % 2) for n in ALL]


def test_rows_of_hugging_face_are_yielded_once(tmp_path: Any) -> None:
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("torch")
    rows = datasets.Dataset.from_dict({"n": ALL}).to_iterable_dataset(num_shards=4)
    for pipe in (iter_pipes.IterableWrapper(rows).sharding_filter(), iter_pipes.IterableWrapper(rows)):
        with loader(pipe) as loading:
            assert sorted(row["n"] for row in loading) == ALL
    with DataLoader2.from_dataset(rows, num_workers=2) as loading:
        assert sorted(row["n"] for row in loading) == ALL
    assert [finding.kind for finding in lint(iter_pipes.IterableWrapper(rows).shuffle())] == []
    assert [finding.kind for finding in lint(iter_pipes.IterableWrapper(rows).shuffle().sharding_filter())] == [
        "splits-itself"
    ]
