"""`DataLoader2.skip` reads and drops items, and later items are the same as after reading."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from random_graphs.users import Passing
from resuming import begun, epochs_of, saved
from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.map import SequenceWrapper
from waiting import wait_for


def many(item: int) -> list[int]:
    return [item] * (item % 3)


#: Pipelines over 200 items, by name.
PIPES: dict[str, Callable[[], Any]] = {
    "a range": lambda: IterableWrapper(range(200)).sharding_filter().map(str),
    "a shuffled map pipe": lambda: SequenceWrapper(range(200)).map(str).shuffle().sharding_filter(),
    "batches": lambda: IterableWrapper(range(200)).map(str).sharding_filter().batch(2),
    "a shuffle buffer": lambda: IterableWrapper(range(200)).shuffle().sharding_filter().map(str),
    "a shuffle behind the sharding": lambda: IterableWrapper(range(200)).sharding_filter().shuffle(buffer_size=9),
    "a function of many items": lambda: IterableWrapper(range(200)).flatmap(many).sharding_filter().map(str),
    "a share that is read ahead": lambda: IterableWrapper(range(200)).map(str).shuffle().sharding_filter().prefetch(3),
    "a share that threads map": lambda: (
        IterableWrapper(range(200)).sharding_filter().threadpool_map(str, max_workers=2)
    ),
    "dispatched": lambda: IterableWrapper(range(200)).sharding_round_robin_dispatch().map(str),
    "a filter at the end": lambda: IterableWrapper(range(200)).sharding_filter().filter(bool),
    "a pipe without a state": lambda: Passing(IterableWrapper(range(200)).sharding_filter().map(str)),
}


def loader(pipe: Any, workers: int | None, state: Any = None) -> DataLoader2[Any]:
    service: Any = None if workers is None else InProcessReadingService()
    if workers:
        service = MultiProcessingReadingService(workers, worker_prefetch_cnt=1, main_prefetch_cnt=0)
    return begun(DataLoader2(pipe, reading_service=service), state, 5)


@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize("kind", PIPES)
def test_after_skipping_come_the_same_items_as_after_reading(kind: str, workers: int | None) -> None:
    build = PIPES[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = epochs_of(loader(build(), workers))
        for place in (0, 3):
            with loader(build(), workers) as made:
                reading = iter(made)
                got = [next(reading) for _ in range(place)]
                assert made.skip(40) == 40
                got += [next(reading) for _ in range(2)]
                assert made.skip(3) == 3
                state = saved(made)
                expected = whole[0][:place] + whole[0][place + 40 : place + 42] + whole[0][place + 45 :]
                assert got + list(reading) == expected
                assert list(made) == whole[1]
            with loader(build(), workers, state) as made:
                assert made.skip(2) == 2
                assert list(made) == whole[0][place + 47 :]
                assert list(made) == whole[1]


@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize("kind", PIPES)
def test_skipping_may_reach_the_end_of_the_epoch(kind: str, workers: int | None) -> None:
    build = PIPES[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole, following = epochs_of(loader(build(), workers))
        with loader(build(), workers) as made:
            reading = iter(made)
            assert [next(reading) for _ in range(4)] == whole[:4]
            assert made.skip(1000) == len(whole) - 4
            assert list(reading) == []
            assert list(made) == following


@pytest.mark.parametrize(("saved_by", "workers"), [(3, 2), (2, 3), (2, 0), (0, 2)])
def test_the_shards_of_another_number_of_workers_are_skipped_in_as_well(saved_by: int, workers: int) -> None:
    pipe = IterableWrapper(range(60)).shuffle().sharding_filter().shuffle(buffer_size=4).map(str)
    with loader(pipe, saved_by) as made:
        reading = iter(made)
        assert made.skip(7) == 7
        state = saved(made)
        rest = list(reading)
    with loader(pipe, workers, state) as made:
        assert made.skip(11) == 11
        reading = iter(made)
        assert next(reading) == rest[11]
        assert made.skip(5) == 5
        assert list(reading) == rest[17:]


@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize("moment", ["before", "between", "behind the end"])
def test_epochs_after_a_loaded_one_are_skipped_in_as_well(workers: int | None, moment: str) -> None:
    pipe = IterableWrapper(range(40)).shuffle().sharding_filter().map(str)
    epochs = epochs_of(loader(pipe, workers), 3)
    with loader(pipe, workers) as made:
        reading = iter(made) if moment != "before" else None
        if reading is not None:
            assert [next(reading) for _ in epochs[0]] == epochs.pop(0)
        if moment == "between":
            assert list(reading) == []
        state = saved(made)
    with loader(pipe, workers, state) as made:
        if moment == "behind the end":
            assert list(made) == []
        for epoch in epochs:
            reading = iter(made)
            assert made.skip(3) == 3
            assert next(reading) == epoch[3]
            assert made.skip(10) == 10
            assert list(reading) == epoch[14:]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("place", [0, 1])
def test_a_source_that_threads_have_read_to_its_end_is_not_started_again(threads: int, count: int, place: int) -> None:
    pipe = IterableWrapper(range(2)).shuffle().cycle(2).map(str).prefetch(5)
    service = InProcessReadingService(prefetch_cnt=5 if threads == 2 else 0)
    epochs = epochs_of(begun(DataLoader2(pipe, reading_service=service)))
    with begun(DataLoader2(pipe, reading_service=service)) as made:
        reading = iter(made)
        got = [next(reading) for _ in range(place)]
        data = made.datapipe._data
        wait_for(lambda: data.is_over)
        assert made.skip(count) == min(count, 4 - place)
        assert got + list(reading) == epochs[0][:place] + epochs[0][place + count :]
        assert list(made) == epochs[1]


@pytest.mark.parametrize(("count", "words"), [(-1, "count is a number .* negative"), (1.5, "count is a number")])
def test_invalid_numbers_of_items_are_refused(count: Any, words: str) -> None:
    with DataLoader2(IterableWrapper(range(3))) as made, pytest.raises((TypeError, ValueError), match=words):
        made.skip(count)


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_an_item_that_cannot_be_made_raises_its_error_and_ends_the_epoch(workers: int | None) -> None:
    with loader(IterableWrapper([1, 2, 0, 4, 5]).sharding_filter().map(_inverse), workers) as made:
        reading = iter(made)
        assert next(reading) == 1
        with pytest.raises(ZeroDivisionError):
            made.skip(3)
        assert made.skip(2) == 2  # these items belong to the next epoch
        with pytest.raises(ZeroDivisionError):
            list(made)


def _inverse(item: int) -> float:
    return 1 / item


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_skipped_items_are_computed(workers: int | None, tmp_path: Path) -> None:
    with loader(IterableWrapper(range(30)).sharding_filter().map(_Noting(tmp_path)), workers) as made:
        assert made.skip(12) == 12
        assert list(made) == list(range(12, 30))
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(30))


class _Noting:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, item: int) -> int:
        (self.folder / str(item)).touch(exist_ok=False)
        return item
