"""With `on_error`, a StatefulDataLoader skips and counts samples that make the dataset raise an exception."""

import json
import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from kept_state import KeptState
from pinning import pin_without_device
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from refusals import refuses
from resumed import advanced, loaded, saved
from torchdata._users_code import code_location
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.utils import TooManySkipped
from torchdata.stateful_dataloader import StatefulDataLoader, errors
from torchdata.stateful_dataloader.errors import WorkerExitedError

#: The samples that cannot be read, including a whole batch (4 to 7).
BROKEN = 1, 4, 5, 6, 7, 13
LEFT = [[0, 2, 3], [8, 9, 10, 11], [12, 14, 15], [16, 17, 18, 19]]
KINDS = {"KeyError": 2, "ValueError": 4}


class Some(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index in BROKEN:
            raise (ValueError if index % 2 else KeyError)(f"broken {index}")
        return index


class AtOnce(Some):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Does(Some):
    def __init__(self, does: Any) -> None:
        self.does = does

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.does()
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)


class Steps(IterableDataset[int]):
    def __init__(self, length: int = 20) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return map(Some().__getitem__, range(first, self.length, step))


class Positioned(KeptState, Steps):
    kept = ("position",)
    position = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.position == self.length:
            self.position = 0
            raise StopIteration
        self.position += 1
        return Some()[self.position - 1]


def loader_of(dataset: Any = None, workers: int = 0, **options: Any) -> Any:
    if workers:
        options = {"multiprocessing_context": "fork", **options}
    options = {"batch_size": 4, "num_workers": workers, "on_error": "skip", **options}
    return StatefulDataLoader(Some() if dataset is None else dataset, **options)


def epoch_of(batches: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        received: list[Any] = [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]
    return [received, "\n".join(str(one.message) for one in shown if issubclass(one.category, RuntimeWarning))]


def flat(batches: list[Any]) -> list[Any]:
    return [sample for batch in batches for sample in batch]


def skipped_of(loader: Any) -> Any:
    return loader.state_dict()["_torchdata_rs"][0]["skipped"]


MESSAGE = "on_error has skipped 6 of the 20 samples of this epoch:\n  4 x ValueError in {0}\n  2 x KeyError in {0}"


def message_of(dataset: type) -> str:
    return MESSAGE.format(where_in(dataset))


def where_in(dataset: type) -> str:
    method = next(name for name in ("__getitems__", "__next__", "__iter__", "__getitem__") if hasattr(dataset, name))
    return f"{dataset.__name__}.{method} ({code_location(getattr(dataset, method).__code__)})"


WAYS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2},
    {"workers": 2, "persistent_workers": True},
    {"workers": 2, "on_worker_exit": "restart"},
]


@pytest.mark.parametrize(("dataset", "way"), [*((Some, way) for way in WAYS), *((AtOnce, way) for way in WAYS[:2])])
def test_a_batch_lacks_the_samples_that_raise_and_an_empty_batch_is_skipped(dataset: Any, way: Any) -> None:
    loader = loader_of(dataset(), **way)
    for _ in range(2):
        assert epoch_of(loader) == [LEFT, message_of(dataset)]
        assert skipped_of(loader) == {"kinds": KINDS, "seen": 20}


@pytest.mark.parametrize(
    ("way", "count"), [*((WAYS[0], count) for count in range(5)), (WAYS[1], 1), (WAYS[1], 4), (WAYS[3], 2)]
)
def test_a_state_at_any_batch_resumes_with_the_same_batches_and_counts(way: Any, count: int) -> None:
    loader = loader_of(**way)
    advanced(loader, count)
    state = saved(loader)
    assert sum(state["_torchdata_rs"][0]["skipped"]["kinds"].values()) == [0, 1, 5, 6, 6][count]
    for later in [way, WAYS[1]] if way == WAYS[0] and count % 2 else [way]:
        resumed = loaded(loader_of(**later), state)
        assert resumed.state_dict() == state
        assert epoch_of(resumed) == [LEFT[count:], message_of(Some)]
        assert epoch_of(resumed) == [LEFT, message_of(Some)]


@pytest.mark.parametrize(("workers", "pins"), [(0, False), (2, False), (2, True)])
def test_single_samples_are_skipped_even_with_pinned_memory(
    workers: int, pins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin_without_device(monkeypatch)
    loader = loader_of(workers=workers, batch_size=None, pin_memory=pins)
    assert epoch_of(loader) == [flat(LEFT), message_of(Some)]


def test_out_of_order_each_undamaged_sample_is_yielded_once() -> None:
    loader = loader_of(workers=2, in_order=False)
    iterator = iter(loader)
    first = next(iterator).tolist()
    resumed = loaded(loader_of(workers=2, in_order=False), loader.state_dict())
    rest, shown = epoch_of(resumed)
    assert sorted([first, *rest]) == LEFT
    assert shown == message_of(Some)


def test_a_worker_exit_does_not_change_the_counts_and_the_log(tmp_path: Any) -> None:
    log = tmp_path / "log"
    loader = loader_of(workers=2, on_worker_exit="restart", error_log=log)
    iterator = iter(loader)
    received = [next(iterator).tolist()]
    for pid in loader._iterator._pool.pids:
        os.kill(pid, signal.SIGKILL)
    rest, shown = epoch_of(iterator)
    assert received + rest == LEFT
    assert message_of(Some) in shown
    assert [json.loads(line)["index"] for line in log.read_text().splitlines()] == list(BROKEN)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_log_has_a_line_for_each(tmp_path: Any, workers: int) -> None:
    log = tmp_path / "log"
    loader = loader_of(AtOnce(), workers, error_log=log)
    epoch_of(loader)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(BROKEN)
    epoch_of(loader)
    again = [json.loads(line) for line in log.read_text().splitlines()][len(lines) :]
    assert again == [{**line, "epoch": 1} for line in lines]
    worker = 1 if workers else None  # worker 1 reads the batch with index 4
    assert lines[1] == {
        "epoch": 0, "worker": worker, "dataset": where_in(AtOnce),
        "index": 4, "error": "KeyError", "message": "'broken 4'", "notes": [],
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:on_error has skipped")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_log_names_the_samples_of_a_stream_by_worker_and_number(tmp_path: Any, workers: int) -> None:
    log = tmp_path / "log"
    list(loader_of(Steps(), workers, error_log=log))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    share = max(1, workers)
    wanted = sorted((index % share, index // share) for index in BROKEN)
    assert sorted((line["worker"] or 0, line["index"]) for line in lines) == wanted


@pytest.mark.filterwarnings("ignore:on_error has skipped")
@pytest.mark.parametrize(("workers", "limit"), [(0, 5), (0, 0.25), (2, 0.25), (2, 0)])
def test_more_than_the_limit_is_an_error_with_a_table(workers: int, limit: Any) -> None:
    words = rf"(?s)more than error_limit={limit} permits.*x ValueError in Some.*The last one was index \d+: ValueError"
    with pytest.raises(TooManySkipped, match=words):
        list(loader_of(workers=workers, error_limit=limit))
    permitted = {5: 6, 0.25: 0.3, 0: 6}[limit]
    assert [batch.tolist() for batch in loader_of(workers=workers, error_limit=permitted)] == LEFT
    assert errors.TooManySkipped is TooManySkipped


def test_the_limit_counts_samples_that_were_skipped_before_the_state() -> None:
    loader = loader_of(error_limit=5)
    advanced(loader, 2)
    resumed = loaded(loader_of(workers=2, error_limit=5), loader.state_dict())
    with pytest.raises(TooManySkipped, match="has skipped 6 items"):
        next(iter(resumed))


def test_an_epoch_with_nothing_skipped_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader_of(range(8), error_limit=0))) == 2


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("kind", "how"), [(MemoryError, ()), (KeyboardInterrupt, ()), (SystemExit, ()), (WorkerExitedError, ("", 0, 1, ""))]
)
def test_errors_that_no_sample_has_caused_are_raised(workers: int, kind: Any, how: Any) -> None:
    def does() -> None:
        raise kind(*how)

    # An exception that would end the program, such as SystemExit, becomes an explanatory error in a worker.
    with pytest.raises(kind if issubclass(kind, Exception) or not workers else RuntimeError) as caught:
        list(loader_of(Does(does), workers))
    assert kind.__name__ in str(caught.value) or not workers


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_the_collate_function_is_raised(workers: int) -> None:
    def collate(samples: Any) -> Any:
        raise ArithmeticError(len(samples))

    with pytest.raises(ArithmeticError):
        next(iter(loader_of(workers=workers, collate_fn=collate)))


@pytest.mark.filterwarnings("ignore:on_error has skipped")
@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_without_a_text_is_skipped_as_well(workers: int) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Stops(Some):
        def __getitem__(self, index: int) -> int:
            raise (StopIteration, Mute)[index % 2] if index < 2 else ValueError("\ud800")

    loader = loader_of(Stops(), workers)
    assert list(loader) == []
    assert skipped_of(loader)["kinds"] == {"StopIteration": 1, "Mute": 1, "ValueError": 18}


def test_an_error_explains_that_a_batch_cannot_be_read_sample_by_sample() -> None:
    class Columns(Some):
        def __getitems__(self, indices: list[int]) -> Any:
            if len(indices) > 1:
                raise ValueError("broken")
            return {"index": indices}

    with pytest.raises(ValueError, match="broken") as caught:
        next(iter(loader_of(Columns(), collate_fn=list)))
    assert any("on_error cannot skip the sample" in note for note in caught.value.__notes__)


def test_without_on_error_an_exception_is_raised_and_the_state_is_unchanged() -> None:
    loader = StatefulDataLoader(Some(), 4)
    with pytest.raises(ValueError, match="broken 1"):
        list(loader)
    assert "skipped" not in loader.state_dict()["_torchdata_rs"][0]


def test_states_with_and_without_counts_load_into_each_other() -> None:
    skips = loader_of(range(20))
    next(iter(skips))
    plain = loaded(StatefulDataLoader(range(20), 4), skips.state_dict())
    assert next(iter(plain)).tolist() == [4, 5, 6, 7]
    skips = loaded(loader_of(), plain.state_dict())
    rest, shown = epoch_of(skips)
    assert rest == LEFT[1:]
    assert "1 of the 12 samples" in shown


@pytest.mark.parametrize("counts", [3, {"kinds": {"KeyError": -1}, "seen": 4}, {"kinds": {"KeyError": 2}, "seen": 1}])
def test_counts_that_are_damaged_are_refused(counts: Any) -> None:
    loader = loader_of()
    next(iter(loader))
    state = loader.state_dict()
    state["_torchdata_rs"][0]["skipped"] = counts
    loader.load_state_dict(loader_of().state_dict())
    with pytest.raises(ValueError, match="damaged"):
        loader.load_state_dict(state)


test_impossible_arguments_are_refused = refuses(
    (lambda: loader_of(on_error="pass"), ValueError, "on_error must be 'raise' or 'skip', but got 'pass'"),
    (lambda: loader_of(error_limit="3"), TypeError, "error_limit must be a number"),
    (lambda: loader_of(error_limit=1.5), ValueError, "error_limit must be a number of items, or a float from 0 to 1"),
    (lambda: loader_of(on_error="raise", error_limit=3), ValueError, "require on_error='skip'"),
    (lambda: loader_of(on_error="raise", error_log="log"), ValueError, "require on_error='skip'"),
    (lambda: loader_of(Stream()), ValueError, "the __iter__ of Stream: it is a generator, and an exception"),
    (lambda: loader_of(IterableWrapper([1])), ValueError, r"it is made of pipes.*put .on_error"),
)


@pytest.mark.parametrize("dataset", [Steps, Positioned])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_with_next_continues_after_an_item_that_raises(dataset: Any, workers: int) -> None:
    loader = loader_of(dataset(), workers)
    for _ in range(2):
        assert epoch_of(loader) == [LEFT, message_of(dataset)]
        assert skipped_of(loader) == {"kinds": KINDS, "seen": 20}
    for count in [1, 4] if workers else range(len(LEFT) + 1):
        loader = loader_of(dataset(), workers)
        iterator = iter(loader)
        before = [next(iterator).tolist() for _ in range(count)]
        resumed = loaded(loader_of(dataset(), workers), saved(loader))
        rest, shown = epoch_of(resumed)
        assert before + rest == LEFT, count
        assert shown == message_of(dataset)


def test_items_of_an_iterator_are_yielded_one_at_a_time_and_in_several_workers() -> None:
    assert epoch_of(loader_of(Steps(), batch_size=None)) == [flat(LEFT), message_of(Steps)]
    for options in ({}, {"persistent_workers": True}):
        loader = loader_of(Steps(), 2, batch_size=2, **options)
        for _ in range(2):
            received, shown = epoch_of(loader)
            assert sorted(flat(received)) == flat(LEFT)
            assert shown == message_of(Steps)


def test_the_last_batch_of_an_iterator_is_dropped_if_it_is_short() -> None:
    assert epoch_of(loader_of(Steps(18), drop_last=True))[0] == LEFT[:3]


class Through(Steps):
    def __iter__(self) -> Iterator[int]:
        return map(abs, self.generator())

    def generator(self) -> Iterator[int]:
        for number in range(self.length):
            yield Some()[number]


class Made(Steps):
    """A stream with a method `__iter__` that lacks `yield`, but returns a generator."""

    def __iter__(self) -> Iterator[int]:
        return (Some()[number] for number in range(self.length))


class Stuck(Steps):
    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        raise OSError("stuck")


@pytest.mark.parametrize(
    ("dataset", "kind", "words"),
    [
        (Through, ValueError, "a generator in the iterator of Through has raised it and yielded nothing after it"),
        (Made, ValueError, "cannot skip exceptions of the iterator of Made: it is a generator"),
        (Stuck, OSError, "the iterator of Stuck has raised 10000 times without a sample in between"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_explains_why_an_iterator_cannot_continue(dataset: Any, kind: Any, words: str, workers: int) -> None:
    with pytest.raises(kind) as caught:
        epoch_of(loader_of(dataset(), workers))
    assert any(words in note for note in caught.value.__notes__)
