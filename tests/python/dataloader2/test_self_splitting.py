"""Sources that distribute their items among the workers never lose or repeat items without an error."""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes._pipe import witnessing
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper

torch = pytest.importorskip("torch")


class Seeded:
    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        random.Random(0 if worker is None else worker.seed)
        yield from range(10)


class Logging:
    def __init__(self, items: int, shuffles: bool = False) -> None:
        self.items, self.shuffles = items, shuffles

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        name = "main" if worker is None else f"one of {worker.num_workers}"
        order = list(range(self.items))
        if self.shuffles:
            random.Random().shuffle(order)
        yield from ({"id": number, "text": f"{number}"} for number in order if name)


class Dividing(Logging):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return islice(super().__iter__(), first, None, step)


class Header:
    """A stream that divides its rows among the workers, after each worker has yielded the same header."""

    def __iter__(self) -> Iterator[str]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        yield "header"
        if worker.num_workers == 1:
            yield "rows"


def test_a_dataset_that_reads_its_worker_info_without_dividing_yields_each_item_once() -> None:
    for workers in (0, 2):
        with DataLoader2.from_dataset(Seeded(), num_workers=workers) as loader:
            assert list(loader) == list(loader) == list(range(10))


@pytest.mark.parametrize(("items", "shuffles"), [(1, False), (3, True), (2000, False), (2000, True)])
def test_workers_that_read_the_same_items_are_an_error_that_names_the_argument(items: int, shuffles: bool) -> None:
    error = pytest.raises(RuntimeError, match=r"over Logging, so these would come twice.*splits_itself=False")
    with DataLoader2.from_dataset(Logging(items, shuffles), batch_size=2, num_workers=2) as loader, error:
        list(loader)


def test_the_loader_divides_a_dataset_with_splits_itself_false() -> None:
    for make in (Logging, Dividing):
        with DataLoader2.from_dataset(make(30), num_workers=3, splits_itself=False) as loader:
            assert [row["id"] for row in loader] == list(range(30))


@pytest.mark.parametrize(("items", "splits_itself"), [(1, None), (2, True), (3000, None), (3000, True)])
def test_a_source_that_splits_itself_yields_each_item_once(items: int, splits_itself: bool | None) -> None:
    with DataLoader2.from_dataset(Dividing(items), num_workers=2, splits_itself=splits_itself) as loader:
        for _ in range(2):
            assert sorted(row["id"] for row in loader) == list(range(items))


def test_equal_items_of_a_source_that_is_declared_to_split_itself_raise_no_error() -> None:
    with DataLoader2.from_dataset(Header(), num_workers=2, splits_itself=True) as loader:
        assert list(loader) == ["header", "header"]
    with DataLoader2.from_dataset(Header(), num_workers=2) as loader, pytest.raises(RuntimeError, match="itself=True"):
        list(loader)


def is_sampled(_item: Any) -> bool:
    return witnessing.current is not None


KNOWN: dict[str, Callable[[], IterDataPipe[Any]]] = {
    "a range": lambda: IterableWrapper(range(8)).shuffle().map(int).sharding_filter(),
    "a list": lambda: IterableWrapper([*range(8)]).sharding_filter(),
    "by index": lambda: SequenceWrapper([*range(8)]).map(int).shuffle().sharding_filter(),
    "by index in order": lambda: SequenceWrapper(range(8)).to_iter_datapipe().sharding_filter(),
}
UNKNOWN: dict[str, Callable[[], IterDataPipe[Any]]] = {
    "a stream": lambda: IterableWrapper(Seeded()).sharding_filter(),
    "a filter": lambda: IterableWrapper(range(8)).filter(lambda number: number % 2 == 0).sharding_filter(),
    "a sampler": lambda: SequenceWrapper(range(10)).sample_by(Seeded()).sharding_filter(),
    "errors that are skipped": lambda: IterableWrapper(range(8)).map(int).on_error("skip").sharding_filter(),
}


@pytest.mark.parametrize("build", [*KNOWN, *UNKNOWN])
def test_orders_are_compared_where_they_may_differ(build: str) -> None:
    pipe = {**KNOWN, **UNKNOWN}[build]().map(is_sampled)
    with DataLoader2(pipe, reading_service=MultiProcessingReadingService(2)) as loader:
        for _ in range(2):
            assert set(loader) == {build in UNKNOWN}


def test_orders_are_compared_where_a_function_of_the_users_prepares_the_graph() -> None:
    pipe = KNOWN["a range"]().map(is_sampled)
    with DataLoader2(
        pipe, reading_service=MultiProcessingReadingService(2, worker_init_fn=lambda pipe, info: pipe)
    ) as loader:
        assert set(loader) == {True}
