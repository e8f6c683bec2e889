"""Loaders read datasets that distribute their items among workers themselves, or that have a method `set_epoch`."""

import random
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from rank_threads import ThreadGroup, in_ranks
from torchdata.dataloader2 import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from torchdata.dataloader2.linter import DataPipeLintWarning, lint
from torchdata.dataloader2.random import SeedGenerator
from torchdata.datapipes._pipe.datasets import splits_among_ranks, splits_itself
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.state import load_state, save_state


class Epochs:
    def __init__(self) -> None:
        self._epoch = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(order_of(self._epoch))


class CountingEpochs(Epochs):
    def __iter__(self) -> Iterator[int]:
        self._epoch += 1
        return iter(order_of(self._epoch - 1))


def order_of(epoch: int) -> list[int]:
    numbers = list(range(10))
    random.Random(epoch).shuffle(numbers)
    return numbers


@pytest.mark.parametrize(
    ("dataset", "form", "method", "numbers"),
    [
        (Epochs, "sharding_filter", "spawn", [(0, 0), (1, 1), (1, 1), (5, 5), (0, 0)]),
        (Epochs, "sharding_round_robin_dispatch", "fork", [(0, 0), (1, 1), (1, 1), (5, 5), (0, 0)]),
        (CountingEpochs, "sharding_filter", "fork", [(None, 0), (None, 1), (None, 2), (7, 7)]),
    ],
)
def test_workers_read_the_epoch_that_was_set_in_the_main_process(
    dataset: type[Epochs], form: str, method: str, numbers: list[tuple[int | None, int]]
) -> None:
    """Pairs in `numbers` contain the epoch number that the main process sets, and the number that workers must read."""
    epochs, service = dataset(), MultiProcessingReadingService(2, method)
    end = service.initialize(getattr(IterableWrapper(epochs, deepcopy=False), form)())
    try:
        for number, expected in numbers:
            if number is not None:
                epochs.set_epoch(number)
            service.initialize_iteration(SeedGenerator(3))
            assert list(end) == order_of(expected)
            service.finalize_iteration()
    finally:
        service.finalize()


def test_a_state_contains_the_epoch_in_which_it_was_saved() -> None:
    epochs = Epochs()
    epochs.set_epoch(3)
    pipe = IterableWrapper(epochs)
    items = iter(pipe)
    begun = [next(items) for _ in range(4)]
    epochs.set_epoch(4)  # The epoch has already begun, so the new number applies to the next epoch.
    other = IterableWrapper(Epochs())
    load_state(other, save_state(pipe))
    assert begun + list(other) == order_of(3)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Any:
    data = pytest.importorskip("torch").utils.data

    class Splitting(data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            info = getattr(data, "get_worker" + "_info")()
            return iter(range(10) if info is None else range(info.id, 10, info.num_workers))

    class OwnIterator(Splitting):
        def __next__(self) -> int:
            raise AssertionError("the dataset was iterated, not indexed")

    class DataPipeline(Splitting):
        def __init__(self, *pipeline: Any) -> None:
            self.pipeline = pipeline

    classes = {
        "webdataset.pipeline.DataPipeline": DataPipeline,
        "streaming.base.dataset.StreamingDataset": type("StreamingDataset", (Splitting,), {}),
        "litdata.streaming.dataset.StreamingDataset": type("StreamingDataset", (OwnIterator,), {}),
    }
    for path, cls in classes.items():
        module, _, name = path.rpartition(".")
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
        setattr(sys.modules[module], name, cls)
    return types.SimpleNamespace(wds=DataPipeline, mosaic=[*classes.values()][1], lit=[*classes.values()][2])


def split_by_worker() -> None: ...


def split_by_node() -> None: ...


def test_datasets_of_known_libraries_are_not_split_again(libraries: Any) -> None:
    for dataset in (libraries.wds(split_by_worker), libraries.mosaic(), libraries.lit()):
        assert splits_itself(dataset)
        assert lint(IterableWrapper(dataset).shuffle()) == []
        with DataLoader2.from_dataset(dataset, num_workers=2) as loader:
            assert sorted(loader) == list(range(10))
    with DataLoader2(IterableWrapper(libraries.mosaic(), deepcopy=False), num_workers=2) as loader:
        assert sorted(loader) == list(range(10))
    assert not splits_itself(libraries.wds())
    assert splits_among_ranks(libraries.mosaic())
    assert splits_among_ranks(libraries.lit())
    assert not splits_among_ranks(libraries.wds())
    assert splits_among_ranks(libraries.wds(split_by_node, split_by_worker))


def test_a_filter_over_a_source_that_divides_itself_causes_a_warning_with_its_name(libraries: Any) -> None:
    service = MultiProcessingReadingService(2, "fork")
    pipe = IterableWrapper(libraries.mosaic(), deepcopy=False).sharding_filter()
    warned = pytest.warns(DataPipeLintWarning, match="StreamingDataset in IterableWrapper.*remove the filter")
    with DataLoader2(pipe, reading_service=service) as loader, warned:
        iter(loader)
    [finding] = lint(IterableWrapper(libraries.lit()).shuffle().sharding_filter())
    assert (finding.kind, finding.silent) == ("splits-itself", False)


def lengths(pipe: IterDataPipe[Any], workers: int, take: int | None = None) -> tuple[list[Any], list[str]]:
    def run(group: ThreadGroup) -> list[int]:
        service: Any = DistributedReadingService(process_group=group)
        if workers:
            service = SequentialReadingService(service, MultiProcessingReadingService(workers, "fork"))
        with DataLoader2(pipe, reading_service=service) as loader:
            return [sum(1 for _ in zip(range(take or 10**6), loader, strict=False)) for _ in range(2)]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = in_ranks(2, run)
    return found, [str(each.message) for each in caught if issubclass(each.category, UserWarning)]


@pytest.mark.parametrize(("shards", "workers", "left"), [(6, 2, 40), (7, 0, 20)])
def test_one_warning_reports_how_many_items_uneven_shards_omit(shards: int, workers: int, left: int) -> None:
    pipe = IterableWrapper(range(shards)).sharding_filter().flatmap(lambda shard: range(20 * shard, 20 * shard + 20))
    found, warned = lengths(pipe, workers)
    assert found[0] == found[1]
    [message] = warned
    assert f"this rank has {left} items" in message
    assert "multiple of the number of ranks" in message


def test_items_that_an_even_division_leaves_out_and_abandoned_loops_cause_no_warning() -> None:
    assert lengths(IterableWrapper(range(27)).sharding_filter(), 0)[1] == []
    assert lengths(IterableWrapper(range(27)).sharding_filter().batch(4), 2)[1] == []
    found, warned = lengths(IterableWrapper(range(200)).sharding_filter(), 0, take=5)
    assert (found, warned) == ([[5, 5], [5, 5]], [])
