"""`DataLoader2.skip`: the same items as after reading, and what is not made for it."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

from torchdata.dataloader2 import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from torchdata.dataloader2.adapter import ShardingPolicy
from torchdata.datapipes.iter import IterableWrapper, IterDataPipe
from torchdata.datapipes.map import SequenceWrapper
from waiting import wait_for

pytestmark = pytest.mark.alone


class Counting:
    """A function, or data read by index, that notes in a file what it was asked for."""

    def __init__(self, path: Path, length: int = 0) -> None:
        self.path, self.length = path, length

    def __call__(self, item: Any) -> Any:
        with self.path.open("a") as file:
            file.write(f"{item}\n")
        return item

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return int(self(index))

    def __len__(self) -> int:
        return self.length

    @property
    def asked(self) -> list[int]:
        return [int(line) for line in self.path.read_text().split()] if self.path.exists() else []


class Silent(IterDataPipe):
    """A user's pipe without a state."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        yield from self.source


def many(item: int) -> list[int]:
    return [item] * (item % 3)


#: By name: the pipeline over 200 items, and whether all that is skipped stays unmade in the main process, and in
#: workers.
PIPES: dict[str, tuple[Any, bool, bool]] = {
    "a range": (lambda count: IterableWrapper(range(200)).sharding_filter().map(count), True, True),
    "a list": (lambda count: IterableWrapper(list(range(200))).map(count).sharding_filter(), True, True),
    "data read by index": (lambda count: IterableWrapper(Counting(count.path, 200)).sharding_filter(), True, True),
    "a map pipe": (
        lambda count: SequenceWrapper(range(200)).map(count).to_iter_datapipe().sharding_filter(),
        True,
        True,
    ),
    "a shuffled map pipe": (
        lambda count: SequenceWrapper(range(200)).map(count).shuffle().sharding_filter(),
        True,
        True,
    ),
    "batches": (lambda count: IterableWrapper(range(200)).map(count).sharding_filter().batch(2), True, True),
    "a shuffle buffer": (lambda count: IterableWrapper(range(200)).shuffle().sharding_filter().map(count), True, True),
    "a function of many items": (
        lambda count: IterableWrapper(range(200)).flatmap(many).sharding_filter().map(count),
        True,
        True,  # though nobody knows how many there are
    ),
    "a share that is read ahead": (
        lambda count: IterableWrapper(range(200)).map(count).shuffle().sharding_filter().prefetch(3),
        False,  # whose buffers are full before
        False,
    ),
    "a share that threads map": (
        lambda count: IterableWrapper(range(200)).sharding_filter().threadpool_map(count, max_workers=2),
        False,
        False,
    ),
    "dispatched": (lambda count: IterableWrapper(range(200)).sharding_round_robin_dispatch().map(count), True, True),
    "a filter at the end": (
        lambda count: IterableWrapper(range(200)).sharding_filter().map(count).filter(bool),
        False,
        False,
    ),
    "a pipe without a state": (
        lambda count: Silent(IterableWrapper(range(200)).sharding_filter().map(count)),
        False,
        False,
    ),
}


def loader(pipe: Any, workers: int | None, state: Any = None) -> DataLoader2[Any]:
    service: Any = None if workers is None else InProcessReadingService()
    if workers:
        service = MultiProcessingReadingService(workers, worker_prefetch_cnt=1, main_prefetch_cnt=0)
    made = DataLoader2(pipe, ShardingPolicy(2) if type(pipe).__name__ == "Batcher" else None, service)
    if state is None:
        made.seed(5)
    else:
        made.load_state_dict(state)
    return made


@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize("kind", PIPES)
def test_what_comes_behind_is_what_comes_behind_reading(kind: str, workers: int | None, tmp_path: Path) -> None:
    build, *unmade = PIPES[kind]

    def pipe(name: str) -> Any:
        return build(Counting(tmp_path / name))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with loader(pipe("whole"), workers) as made:
            whole = [list(made), list(made)]
        for place in (3,) if workers else (0, 3):
            counting = Counting(tmp_path / f"skipped {place}")
            with loader(pipe(counting.path.name), workers) as made:
                reading = iter(made)
                got = [next(reading) for _ in range(place)]
                before = len(counting.asked)
                assert made.skip(40) == 40
                got += [next(reading) for _ in range(2)]
                if unmade[bool(workers)]:
                    # Workers run ahead: before and after what was skipped, each by as many items as it may.
                    most = 2 + (2 * 2 * 3 if workers else 0)
                    assert len(counting.asked) - before <= most * (2 if kind == "batches" else 1)
                assert made.skip(3) == 3
                state = pickle.loads(pickle.dumps(made.state_dict()))
                assert (
                    got + list(reading) == whole[0][:place] + whole[0][place + 40 : place + 42] + whole[0][place + 45 :]
                )
                assert list(made) == whole[1]
            with loader(pipe("resumed"), workers, state) as made:
                assert list(made) == whole[0][place + 45 :]


@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize("kind", PIPES)
def test_there_may_be_fewer(kind: str, workers: int | None, tmp_path: Path) -> None:
    build, *_ = PIPES[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with loader(build(Counting(tmp_path / "items")), workers) as made:
            whole = list(made)
            following = list(made)
        with loader(build(Counting(tmp_path / "items")), workers) as made:
            reading = iter(made)
            assert [next(reading) for _ in range(4)] == whole[:4]
            assert made.skip(1000) == len(whole) - 4
            assert list(reading) == []
            assert list(made) == following


@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize("moment", ["before", "between", "behind the end"])
def test_epochs_after_a_loaded_one_are_skipped_in_as_well(workers: int | None, moment: str) -> None:
    pipe = IterableWrapper(range(40)).shuffle().sharding_filter().map(str)
    with loader(pipe, workers) as made:
        epochs = [list(made) for _ in range(3)]
    with loader(pipe, workers) as made:
        reading = iter(made) if moment != "before" else None
        if reading is not None:
            assert [next(reading) for _ in epochs[0]] == epochs.pop(0)
        if moment == "between":
            assert list(reading) == []
        state = pickle.loads(pickle.dumps(made.state_dict()))
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
def test_what_threads_have_read_to_its_end_is_not_begun_anew(threads: int, count: int, place: int) -> None:
    pipe = IterableWrapper(range(2)).shuffle().cycle(2).map(str).prefetch(5)
    service = InProcessReadingService(prefetch_cnt=5 if threads == 2 else 0)
    with DataLoader2(pipe, reading_service=service) as made:
        made.seed(5)
        epochs = [list(made), list(made)]
    with DataLoader2(pipe, reading_service=service) as made:
        made.seed(5)
        reading = iter(made)
        got = [next(reading) for _ in range(place)]
        data = made.datapipe._data
        wait_for(lambda: data.is_over)
        assert made.skip(count) == min(count, 4 - place)
        assert got + list(reading) == epochs[0][:place] + epochs[0][place + count :]
        assert list(made) == epochs[1]


@pytest.mark.parametrize(("count", "words"), [(-1, "count is a number .* negative"), (1.5, "count is a number")])
def test_what_is_no_number_of_items_is_refused(count: Any, words: str) -> None:
    with DataLoader2(IterableWrapper(range(3))) as made, pytest.raises((TypeError, ValueError), match=words):
        made.skip(count)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_data_is_passed_over_without_its_error(workers: int) -> None:
    with loader(IterableWrapper([1, 2, 0, 0, 4, 5]).sharding_filter().map(_inverse), workers) as made:
        reading = iter(made)
        got = [next(reading), next(reading)]
        assert made.skip(2) == 2
        assert got + list(reading) == [1, 0.5, 0.25, 0.2]


def _inverse(item: int) -> float:
    return 1 / item


def test_row_groups_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from torchdata.datapipes.iter import ParquetDataFrameLoader

    for name in "ab":
        table = pyarrow.table({"a": list(range(20)), "of": [name] * 20})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
    read: list[int] = []
    kept = ParquetDataFrameLoader._row_group
    monkeypatch.setattr(
        ParquetDataFrameLoader, "_row_group", lambda self, file, index: read.append(index) or kept(self, file, index)
    )

    def pipe() -> Any:
        files = IterableWrapper([str(tmp_path / f"{name}.parquet") for name in "ab"])
        return files.load_parquet_as_df(library="numpy").map(_first)

    whole = list(pipe())
    del read[:]
    with DataLoader2(pipe()) as made:
        reading = iter(made)
        assert next(reading) == whole[0]
        assert made.skip(13) == 13
        assert list(reading) == whole[14:]
    assert read == [0, 4, 5, 6, 7, 8, 9]


def _first(frame: Any) -> tuple[int, str]:
    return int(frame["a"][0]), str(frame["of"][0])
