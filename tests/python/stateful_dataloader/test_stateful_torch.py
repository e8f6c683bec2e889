"""StatefulDataLoader has the same order, seeds, arguments, checks, warnings and worker info as torch's loader."""

import gc
import itertools
import multiprocessing
import random
import threading
import time
from collections.abc import Iterator
from multiprocessing.context import BaseContext, ForkProcess, SpawnProcess
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, get_worker_info

from families import Mapped
from pinning import pin_without_device
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from torchdata.stateful_dataloader import StatefulDataLoader
from waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Informed(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        drawn = random.random(), float(torch.rand(())), float(numpy.random.random())
        return [index, info.id, info.num_workers, info.seed, *drawn]


class Marking(Informed):
    def __init__(self, marks: Any) -> None:
        self.marks = marks

    def __getitem__(self, index: int) -> Any:
        self.marks[index] += 1
        return super().__getitem__(index)


class Streamed(IterableDataset[int]):
    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(self.length) if info is None else range(info.id, self.length, info.num_workers))

    def __len__(self) -> int:
        return self.length


def both(*arguments: Any, seed: int = 3, epochs: int = 2, **options: Any) -> tuple[list[Any], list[Any]]:
    found: list[list[Any]] = []
    for cls in (DataLoader, StatefulDataLoader):
        torch.manual_seed(seed)
        loader = cls(*arguments, **options)
        found.append([])
        for epoch in range(epochs):
            found[-1].append([])
            for batch in loader:
                found[-1][-1].append(as_lists(batch))
                if cls is StatefulDataLoader and epoch == 0:
                    loader.state_dict()
    return found[0], found[1]


def as_lists(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, list):
        return [as_lists(one) for one in batch]
    return batch


@pytest.mark.parametrize(("workers", "seed"), [(0, 0), (0, 1), (2, 0)])
def test_the_order_of_a_seed_is_torch_s(workers: int, seed: int) -> None:
    options: list[dict[str, Any]] = [
        {"batch_size": 3, "shuffle": True},
        {"batch_size": 4, "shuffle": True, "drop_last": True, "generator": torch.Generator().manual_seed(seed)},
        {"batch_size": None, "shuffle": True},
        {"batch_size": 2, "sampler": range(10, -1, -1)},
        {"sampler": RandomSampler(range(11), replacement=True, num_samples=40)},
        {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
        {"batch_size": 2, "sampler": torch.utils.data.WeightedRandomSampler([0.1, 0.5, 0.4], 7)},
    ]
    for one in options[:: 3 if workers else 1]:
        if "generator" in one:  # Each of the two loaders needs a separate generator.
            theirs, _ = both(range(11), num_workers=workers, **one)
            one["generator"] = torch.Generator().manual_seed(seed)
            torch.manual_seed(3)
            loader = StatefulDataLoader(range(11), num_workers=workers, **one)
            ours = [[as_lists(batch) for batch in loader] for _ in range(2)]
        else:
            theirs, ours = both(range(11), num_workers=workers, seed=seed, **one)
        assert ours == theirs, one


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_are_seeded_and_have_worker_info_as_torch_s(persistent: bool) -> None:
    theirs, ours = both(Informed(), batch_size=2, num_workers=2, persistent_workers=persistent)
    assert ours == theirs


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods_give_the_same_batches(method: str) -> None:
    marks = torch.zeros(8, dtype=torch.int64).share_memory_()
    theirs, _ = both(Informed(), batch_size=2, num_workers=1, epochs=1)
    torch.manual_seed(3)
    dataset = Marking(marks)
    loader = StatefulDataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context=method)
    assert [as_lists(batch) for batch in loader] == theirs[0]
    assert marks.tolist() == [1] * 8


def test_iterable_datasets_end_worker_by_worker_as_with_torch() -> None:
    for batch_size, drop in ((None, False), (3, False), (3, True)):
        theirs, ours = both(Streamed(11), batch_size=batch_size, drop_last=drop, num_workers=3, epochs=1)
        assert ours == theirs


def test_a_stateful_loader_is_an_instance_of_torch_s_loader_with_the_same_attributes() -> None:
    loader = StatefulDataLoader(range(10), batch_size=4, shuffle=True, num_workers=1, timeout=5)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader.sampler, RandomSampler)
    assert isinstance(loader.batch_sampler, torch.utils.data.BatchSampler)
    assert (len(loader), loader.batch_size, loader.prefetch_factor, loader.timeout) == (3, 4, 2, 5)
    assert loader.in_order
    assert loader.snapshot_every_n_steps == 1
    assert len(StatefulDataLoader(Streamed(10), batch_size=4, drop_last=True)) == 2


@pytest.mark.parametrize(
    "attribute", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_attributes_of_torch_s_loader_that_must_not_be_set_later_are_guarded(attribute: str) -> None:
    loader = StatefulDataLoader(range(10))
    with pytest.raises(ValueError, match=f"{attribute} attribute should not be set"):
        setattr(loader, attribute, None)


WRONG: list[tuple[Any, dict[str, Any]]] = [
    (range(3), {"num_workers": -1}),
    (range(3), {"timeout": -1}),
    (range(3), {"prefetch_factor": 2}),
    (range(3), {"persistent_workers": True}),
    (range(3), {"sampler": [0], "shuffle": True}),
    (range(3), {"batch_sampler": [[0]], "batch_size": 2}),
    (range(3), {"batch_size": None, "drop_last": True}),
    (range(3), {"num_workers": 1, "multiprocessing_context": "no such"}),
    (range(3), {"num_workers": 1, "multiprocessing_context": 5}),
    (range(3), {"multiprocessing_context": "fork"}),
    (Streamed(), {"shuffle": True}),
    (Streamed(), {"sampler": [0]}),
    (Streamed(), {"batch_sampler": [[0]]}),
    ([], {"shuffle": True}),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments_are_refused_as_torch_does(number: int) -> None:
    dataset, options = WRONG[number]
    refusals = []
    for cls in (DataLoader, StatefulDataLoader):
        with pytest.raises((ValueError, TypeError)) as caught:
            cls(dataset, **options)
        refusals.append((type(caught.value), str(caught.value)))
    assert refusals[0] == refusals[1]


def test_a_stream_that_yields_more_than_its_length_causes_a_warning() -> None:
    class Longer(Streamed):
        def __len__(self) -> int:
            return 3

    loader = StatefulDataLoader(Longer(), batch_size=1)
    assert len(loader) == 3
    with pytest.warns(UserWarning, match="was reported to be 3"):
        assert len(list(loader)) == 10
    loader = StatefulDataLoader(Longer(), batch_size=1, num_workers=1)
    assert len(loader) == 3
    words = r"but \d+ samples have been fetched\. For multiprocessing data-loading, this"
    with pytest.warns(UserWarning, match=words):
        assert len(list(loader)) == 10


def test_more_workers_than_cores_cause_a_warning() -> None:
    with pytest.warns(UserWarning, match="will create 999 worker processes"):
        StatefulDataLoader(range(3), num_workers=999)


def test_pinning_without_an_accelerator_warns_and_yields_batches() -> None:
    if torch.accelerator.is_available():
        pytest.skip("the test needs a machine without an accelerator")
    with pytest.warns(UserWarning, match="no accelerator is found"):
        assert [batch.tolist() for batch in StatefulDataLoader(range(2), pin_memory=True)] == [[0], [1]]


@pytest.mark.parametrize("iterable", [False, True])
def test_with_workers_a_thread_pins_batches(monkeypatch: pytest.MonkeyPatch, iterable: bool) -> None:
    pin_without_device(monkeypatch, lambda batch: batch + 100)
    for persistent in (False, True):
        loader = StatefulDataLoader(
            Streamed(12) if iterable else range(12),
            batch_size=3,
            num_workers=2,
            pin_memory=True,
            persistent_workers=persistent,
        )
        found = [sorted(one for batch in loader for one in batch.tolist()) for _ in range(2)]
        assert found == [[*range(100, 112)]] * 2
        iterator = iter(loader)
        first = next(iterator).tolist()
        state = loader.state_dict()
        rest = [batch.tolist() for batch in iterator]
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == rest
        assert sorted(sum(rest, first)) == [*range(100, 112)]
        for _ in loader:
            break
        del loader, iterator
        gc.collect()
        wait_for(lambda: all(thread.name != "torchdata-pin-memory" for thread in threading.enumerate()))


def test_a_pinning_thread_leaves_an_epoch_before_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinning thread of the first epoch is delayed until the second epoch's thread has requested a batch."""
    from torchdata.stateful_dataloader import _pool

    pin_without_device(monkeypatch)
    wait, threads, asks = _pool.WorkerPool.wait, [], threading.Event()

    def held_up(pool: Any, hand: list[Any]) -> None:
        if threading.current_thread() not in threads:
            threads.append(threading.current_thread())
            if len(threads) > 1:
                asks.set()
                time.sleep(0.2)
        elif len(threads) == 1 and next(asked) == 3:
            asks.wait(1.0)
        wait(pool, hand)

    monkeypatch.setattr(_pool.WorkerPool, "wait", held_up)
    asked = itertools.count()
    loader = StatefulDataLoader(range(12), batch_size=3, num_workers=2, pin_memory=True, persistent_workers=True)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert len(threads) == 2


def test_out_of_order_a_slow_batch_delays_no_other_worker() -> None:
    has_come = multiprocessing.Event()

    def slow(index: int) -> int:
        if index == 0:
            has_come.wait(120)
        return index

    options: Any = {"in_order": False, "multiprocessing_context": "fork"}
    iterator = iter(StatefulDataLoader(Mapped(slow, 8), batch_size=None, num_workers=2, **options))
    found = [next(iterator)]
    has_come.set()
    found.extend(iterator)
    assert sorted(found) == [*range(8)]
    assert found[0] != 0


def test_indices_of_any_size_reach_the_workers() -> None:
    indices = [[*range(100_000)], [7], [*range(50_000)]] * 4
    loader = StatefulDataLoader(
        range(100_000), batch_sampler=indices, num_workers=1, collate_fn=len, prefetch_factor=12
    )
    assert list(loader) == [100_000, 1, 50_000] * 4


def test_workers_that_are_far_ahead_block_no_other_worker() -> None:
    def wide(_: Any) -> Any:
        return [[1] * 40_000]

    loader = StatefulDataLoader(range(30_000), batch_size=50, num_workers=1, collate_fn=wide, prefetch_factor=600)
    iterator = iter(loader)
    assert [len(next(iterator)[0]) for _ in range(20)] == [40_000] * 20


def test_a_pipe_is_read_as_torch_reads_it() -> None:
    from torchdata.datapipes.iter import IterableWrapper

    for workers in (0, 2):
        pipe = IterableWrapper(range(12)).shuffle().sharding_filter()
        theirs, ours = both(pipe, batch_size=3, num_workers=workers, shuffle=True)
        assert ours == theirs


class Spawned(SpawnProcess):
    @property
    def daemon(self) -> bool:
        return False

    @daemon.setter
    def daemon(self, value: bool) -> None:
        pass


class Own(BaseContext):
    _name = "own"

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.Process = kind


@pytest.mark.parametrize(("kind", "exits", "workers"), [(ForkProcess, "error", 2), (Spawned, "restart", 1)])
def test_a_multiprocessing_context_of_the_program_starts_workers(kind: Any, exits: Any, workers: int) -> None:
    loader = StatefulDataLoader(range(9), num_workers=workers, multiprocessing_context=Own(kind), on_worker_exit=exits)
    for _ in range(workers):
        assert [int(number) for number in loader] == [*range(9)]
