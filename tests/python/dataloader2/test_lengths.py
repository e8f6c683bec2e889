"""With workers, dispatching and ranks, `len(loader)` is the number of items, or an error names the responsible pipe."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from one_rank import Alone
from process_checks import loader, nothing_is_left  # noqa: F401
from random_graphs.users import InMain
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe, ShuffledFlatMapper
from torchdata.datapipes.map import SequenceWrapper


class Closing(IterDataPipe):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3

    def __del__(self) -> None:
        pass


#: The pipes of random pipelines. Each function adds one pipe to a pipeline, given a number from 1 to 5.
STEPS: dict[str, Callable[[Any, int], Any]] = {
    "map": lambda pipe, n: pipe.map(str),
    "shuffle": lambda pipe, n: pipe.shuffle(),
    "batch": lambda pipe, n: pipe.batch(n),
    "drop_last": lambda pipe, n: pipe.batch(n, drop_last=True),
    "header": lambda pipe, n: pipe.header(n),
    "repeat": lambda pipe, n: pipe.repeat(n + 1),
    "cycle": lambda pipe, n: pipe.cycle(n),
    "enumerate": lambda pipe, n: pipe.enumerate(),
    "concat": lambda pipe, n: pipe.concat(IterableWrapper(range(n)).sharding_filter()),
    "zip": lambda pipe, n: pipe.zip(IterableWrapper(range(3 * n)).sharding_filter()),
    "mux_longest": lambda pipe, n: pipe.mux_longest(IterableWrapper(range(n)).sharding_filter()),
    "fork": lambda pipe, n: (lambda a, b: a.zip(b))(*pipe.fork(2)),
    "in main": lambda pipe, n: InMain(pipe),
}

JOINS = {"concat", "zip", "mux_longest"}

SOURCES: dict[str, Callable[[int], Any]] = {
    "iterable": lambda n: IterableWrapper(range(n)).sharding_filter(),
    "blocks": lambda n: IterableWrapper(range(n)).sharding_filter().set_sharding_block(3),
    "by index": lambda n: SequenceWrapper(range(n)).shuffle().sharding_filter(),
    "batches": lambda n: IterableWrapper(range(n)).batch(2).sharding_filter(),
    "dispatched": lambda n: IterableWrapper(range(n)).sharding_round_robin_dispatch(),
    "all in each": lambda n: Replicated(range(n)),
}


class Replicated(IterableWrapper):
    """A user-defined source, because the linter would warn about an unsharded source of this package."""


Replicated.__module__ = __name__


@settings(max_examples=15)
@given(
    source=st.sampled_from([*SOURCES]),
    count=st.integers(0, 17),
    steps=st.lists(st.tuples(st.sampled_from([*STEPS]), st.integers(1, 5)), max_size=3),
    workers=st.integers(1, 4),
)
def test_the_length_is_the_number_of_items(source: str, count: int, steps: list[tuple[str, int]], workers: int) -> None:
    pipe = SOURCES[source](count)
    for index, (step, number) in enumerate(steps):
        if step in JOINS and "in main" in dict(steps[:index]):
            continue  # loaders refuse a second branch after the step "in main"
        pipe = STEPS[step](pipe, number)
    with warnings.catch_warnings(), loader(pipe, workers) as loading:
        warnings.simplefilter("ignore")
        before = len(loading)
        assert loading.reading_service._children is None, "`len` starts no process"
        items = sum(1 for _ in loading)
        assert before == items == len(loading)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (3, 0), (3, 2)])
def test_ranks_have_the_length_of_the_shortest_before_and_after_the_first_epoch(ranks: int, workers: int) -> None:
    counted, counts = [], []
    for rank in range(ranks):
        service: Any = DistributedReadingService(process_group=Alone(ranks, rank))
        if workers:
            service = SequentialReadingService(service, MultiProcessingReadingService(workers, "fork"))
        pipe = IterableWrapper(range(17)).sharding_filter().batch(2)
        with DataLoader2(pipe, reading_service=service) as loading:
            counts.append(len(loading))
            counted.append(sum(1 for _ in loading))
            assert len(loading) == counts[-1]
    assert counts == [min(counted)] * ranks


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: IterableWrapper(range(4)).sharding_filter().filter(bool), "Filter"),
        (lambda: IterableWrapper(range(4)).filter(bool).sharding_filter().batch(2), "Filter"),
        (lambda: IterableWrapper(range(9)).filter(bool).header(3).sharding_filter(), "Header"),
        (lambda: IterableWrapper(range(9)).sharding_filter().set_length(9).batch(2), "LengthSetter"),
        (lambda: ShuffledFlatMapper(IterableWrapper([[1], [2]]).sharding_filter()), "ShuffledFlatMapper"),
        (lambda: Closing().sharding_filter(), "Closing"),
    ],
)
def test_the_pipe_that_does_not_know_its_length_is_named(build: Callable[[], Any], words: str) -> None:
    with loader(build()) as loading:
        assert loading
        for _ in range(2):
            with pytest.raises(TypeError, match=words):
                len(loading)
            assert list(loading) is not None


@pytest.mark.parametrize("option", ["worker_init_fn", "worker_reset_fn"])
def test_functions_that_may_change_the_graph_are_named(option: str) -> None:
    loading = loader(IterableWrapper(range(4)).sharding_filter(), **{option: lambda pipe, *_: pipe})
    with loading, pytest.raises(TypeError, match=option):
        len(loading)


def test_an_in_process_loader_uses_the_graph_that_its_function_returned() -> None:
    service = InProcessReadingService(init_fn=lambda pipe, *_: pipe.cycle(2))
    with DataLoader2(IterableWrapper(range(4)), reading_service=service) as loading:
        with pytest.raises(TypeError, match="init_fn"):
            len(loading)
        assert len(list(loading)) == len(loading) == 8


def test_a_length_that_was_set_is_the_length_of_a_whole_epoch() -> None:
    for pipe in (
        IterableWrapper(range(9)).filter(bool).set_length(8).sharding_filter(),
        IterableWrapper(range(9)).sharding_filter().filter(bool).set_length(8),
    ):
        with loader(pipe, 3) as loading:
            assert len(loading) == len(list(loading)) == 8


def test_asking_for_the_length_changes_neither_an_epoch_nor_the_graph() -> None:
    with loader(IterableWrapper(range(10)).sharding_filter(), 2) as loading:
        graph = loading.datapipe
        len(loading)
        assert graph is loading.datapipe
        assert graph.groups == {}
        items = iter(loading)
        first = [next(items), next(items)]
        assert len(loading) == 10
        assert [*first, *items] == list(range(10))
    assert len(loading) == 10
