"""Samples at which the dataset of a StatefulDataLoader raises are skipped, counted and remembered."""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="StatefulDataLoader needs PyTorch")

from torch.utils.data import Dataset, IterableDataset  # noqa: E402

from pinning import pin_without_device  # noqa: E402
from process_checks import nothing_is_left  # noqa: E402, F401 - a fixture for all tests here
from random_stateful.judging import Judge  # noqa: E402
from random_stateful.programs import SKIPPING  # noqa: E402
from torchdata.datapipes.utils import TooManySkipped  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader, errors  # noqa: E402
from torchdata.stateful_dataloader.errors import WorkerExitedError  # noqa: E402

#: Of twenty; a batch of four is wholly among them.
BROKEN = 1, 4, 5, 6, 7, 13
LEFT = [[0, 2, 3], [8, 9, 10, 11], [12, 14, 15], [16, 17, 18, 19]]
KINDS = {"KeyError": 2, "ValueError": 4}


class Some(Dataset[Any]):
    """Raises at some indices."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index in BROKEN:
            raise (ValueError if index % 2 else KeyError)(f"broken {index}")
        return index


class AtOnce(Some):
    """The same, by lists of indices."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Interrupted(Some):
    """Is interrupted at index 8 once, as by Ctrl-C."""

    has_come = False

    def __getitem__(self, index: int) -> int:
        if index == 8 and not self.has_come:
            self.has_come = True
            raise KeyboardInterrupt
        return super().__getitem__(index)


class Does(Some):
    """Does something at index 5."""

    def __init__(self, does: Any) -> None:
        self.does = does

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.does()
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def loader_of(dataset: Any = None, workers: int = 0, **options: Any) -> Any:
    if workers:
        options = {"multiprocessing_context": "fork", **options}
    options = {"batch_size": 4, "num_workers": workers, "on_error": "skip", **options}
    return StatefulDataLoader(Some() if dataset is None else dataset, **options)


def epoch_of(batches: Any) -> list[Any]:
    """The batches of an epoch, and what was warned of in it as text."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        came: list[Any] = [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]
    return [came, "\n".join(str(one.message) for one in told if issubclass(one.category, RuntimeWarning))]


def skipped_of(loader: Any) -> Any:
    return loader.state_dict()["_torchdata_rs"]["skipped"]


TOLD = "on_error has skipped 6 of the 20 samples of this epoch:\n  4 x ValueError in {0}\n  2 x KeyError in {0}"

WAYS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 2},
    {"workers": 2, "persistent_workers": True},
    {"workers": 2, "on_worker_exit": "restart"},
    {"workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
]


@pytest.mark.parametrize(("dataset", "way"), [*((Some, way) for way in WAYS), *((AtOnce, way) for way in WAYS[:2])])
def test_a_batch_comes_without_samples_that_raise_and_an_empty_one_is_passed_over(dataset: Any, way: Any) -> None:
    loader = loader_of(dataset(), **way)
    for _ in range(2):
        assert epoch_of(loader) == [LEFT, TOLD.format(dataset.__name__)]
        assert skipped_of(loader) == {"kinds": KINDS, "seen": 20}


@pytest.mark.parametrize("way", [WAYS[0], WAYS[1], WAYS[3]])
@pytest.mark.parametrize("count", range(5))
def test_a_state_at_any_batch_goes_on_with_the_same_batches_and_counts(way: Any, count: int) -> None:
    loader = loader_of(**way)
    iterator = iter(loader)
    for _ in range(count):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    assert sum(state["_torchdata_rs"]["skipped"]["kinds"].values()) == [0, 1, 5, 6, 6][count]
    for later in (way, WAYS[1]):
        resumed = loader_of(**later)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert epoch_of(resumed) == [LEFT[count:], TOLD.format("Some")]
        assert epoch_of(resumed) == [LEFT, TOLD.format("Some")]


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_come_one_by_one_are_passed_over(workers: int) -> None:
    loader = loader_of(workers=workers, batch_size=None)
    assert epoch_of(loader) == [[sample for batch in LEFT for sample in batch], TOLD.format("Some")]


def test_out_of_order_each_sample_that_is_whole_comes_once() -> None:
    loader = loader_of(workers=2, in_order=False)
    iterator = iter(loader)
    first = next(iterator).tolist()
    state = loader.state_dict()
    resumed = loader_of(workers=2, in_order=False)
    resumed.load_state_dict(state)
    rest, told = epoch_of(resumed)
    assert sorted([first, *rest]) == LEFT
    assert told == TOLD.format("Some")


def test_it_holds_with_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pin_without_device(monkeypatch)
    loader = loader_of(workers=2, pin_memory=True)
    assert epoch_of(loader) == [LEFT, TOLD.format("Some")]


def test_a_worker_that_dies_is_not_seen_in_the_counts_and_the_log(tmp_path: Any) -> None:
    log = tmp_path / "log"
    loader = loader_of(workers=2, on_worker_exit="restart", error_log=log)
    iterator = iter(loader)
    came = [next(iterator).tolist()]
    for pid in loader._iterator._pool.pids:
        os.kill(pid, signal.SIGKILL)
    rest, told = epoch_of(iterator)
    assert came + rest == LEFT
    assert TOLD.format("Some") in told
    assert [json.loads(line)["index"] for line in log.read_text().splitlines()] == list(BROKEN)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_log_has_a_line_for_each(tmp_path: Any, workers: int) -> None:
    log = tmp_path / "log"
    epoch_of(loader_of(AtOnce(), workers, error_log=log))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(BROKEN)
    assert lines[1] == {
        "dataset": "AtOnce", "index": 4, "error": "KeyError", "message": "'broken 4'", "notes": []
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:on_error has skipped")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("limit", [5, 0.25, 0])
def test_more_than_the_limit_is_an_error_with_a_table(workers: int, limit: Any) -> None:
    words = rf"(?s)more than error_limit={limit} permits.*x ValueError in Some.*The last one was index \d+: ValueError"
    with pytest.raises(TooManySkipped, match=words):
        list(loader_of(workers=workers, error_limit=limit))
    permitted = {5: 6, 0.25: 0.3, 0: 6}[limit]
    assert [batch.tolist() for batch in loader_of(workers=workers, error_limit=permitted)] == LEFT
    assert errors.TooManySkipped is TooManySkipped


def test_the_limit_counts_what_was_skipped_before_the_state() -> None:
    loader = loader_of(error_limit=5)
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = loader_of(workers=2, error_limit=5)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(TooManySkipped, match="has skipped 6 items"):
        next(iter(resumed))


def test_an_epoch_with_nothing_skipped_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader_of(range(8), error_limit=0))) == 2


@pytest.mark.filterwarnings("ignore:on_error has skipped")
@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_left_of_a_dataset_that_raises_everywhere(workers: int) -> None:
    class All(Some):
        def __getitem__(self, index: int) -> int:
            raise OSError(index)

    loader = loader_of(All(), workers)
    assert list(loader) == []
    assert skipped_of(loader) == {"kinds": {"OSError": 20}, "seen": 20}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("kind", "how"), [(MemoryError, ()), (KeyboardInterrupt, ()), (SystemExit, ()), (WorkerExitedError, ("", 0, 1, ""))]
)
def test_errors_that_are_no_sample_s_fault_are_raised(workers: int, kind: Any, how: Any) -> None:
    def does() -> None:
        raise kind(*how)

    # As always, what would end the program comes from a worker as an error that says so.
    with pytest.raises(kind if issubclass(kind, Exception) or not workers else RuntimeError) as caught:
        list(loader_of(Does(does), workers))
    assert kind.__name__ in str(caught.value) or not workers


def test_a_worker_that_ends_is_an_error_as_before() -> None:
    with pytest.raises(WorkerExitedError):
        list(loader_of(Does(lambda: os._exit(3)), 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_the_collate_function_is_raised(workers: int) -> None:
    def collate(samples: Any) -> Any:
        raise ArithmeticError(len(samples))

    with pytest.raises(ArithmeticError):
        next(iter(loader_of(workers=workers, collate_fn=collate)))


@pytest.mark.filterwarnings("ignore:on_error has skipped")
@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_that_cannot_be_told_is_skipped_as_well(workers: int) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Stops(Some):
        def __getitem__(self, index: int) -> int:
            raise (StopIteration, Mute)[index % 2] if index < 2 else ValueError("\ud800")

    loader = loader_of(Stops(), workers)
    assert list(loader) == []
    assert skipped_of(loader)["kinds"] == {"StopIteration": 1, "Mute": 1, "ValueError": 18}


def test_a_batch_that_cannot_be_read_one_by_one_is_an_error_that_says_so() -> None:
    class Columns(Some):
        def __getitems__(self, indices: list[int]) -> Any:
            if len(indices) > 1:
                raise ValueError("broken")
            return {"index": indices}

    with pytest.raises(ValueError, match="broken") as caught:
        next(iter(loader_of(Columns(), collate_fn=list)))
    assert any("__getitems__ of the dataset returns no list" in note for note in caught.value.__notes__)


def test_ctrl_c_in_a_batch_counts_nothing_twice() -> None:
    loader = loader_of(Interrupted())
    iterator = iter(loader)
    assert next(iterator).tolist() == LEFT[0]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert skipped_of(loader) == {"kinds": {"KeyError": 2, "ValueError": 3}, "seen": 8}
    resumed = loader_of()
    resumed.load_state_dict(loader.state_dict())
    for rest in (iterator, resumed):
        assert epoch_of(rest) == [LEFT[1:], TOLD.format("Interrupted" if rest is iterator else "Some")]


def test_without_it_an_exception_is_raised_and_the_state_is_as_before() -> None:
    loader = StatefulDataLoader(Some(), 4)
    with pytest.raises(ValueError, match="broken 1"):
        list(loader)
    assert "skipped" not in loader.state_dict()["_torchdata_rs"]


def test_states_with_and_without_counts_load_into_each_other() -> None:
    skips = loader_of(range(20))
    next(iter(skips))
    plain = StatefulDataLoader(range(20), 4)
    plain.load_state_dict(skips.state_dict())
    assert next(iter(plain)).tolist() == [4, 5, 6, 7]
    skips = loader_of()
    skips.load_state_dict(plain.state_dict())
    rest, told = epoch_of(skips)
    assert rest == LEFT[1:]
    assert "1 of the 12 samples" in told


@pytest.mark.parametrize("saved", [3, {"kinds": {"KeyError": -1}, "seen": 4}, {"kinds": {"KeyError": 2}, "seen": 1}])
def test_counts_that_are_damaged_are_refused(saved: Any) -> None:
    loader = loader_of()
    next(iter(loader))
    state = loader.state_dict()
    state["_torchdata_rs"]["skipped"] = saved
    loader.load_state_dict(loader_of().state_dict())
    with pytest.raises(ValueError, match="damaged"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"on_error": "pass"}, ValueError, "on_error must be 'raise' or 'skip', but got 'pass'"),
        ({"error_limit": "3"}, TypeError, "error_limit must be a number"),
        ({"error_limit": 1.5}, ValueError, "error_limit must be a number of items, or a float from 0 to 1"),
        ({"on_error": "raise", "error_limit": 3}, ValueError, "are for on_error='skip'"),
        ({"on_error": "raise", "error_log": "log"}, ValueError, "are for on_error='skip'"),
        ({"dataset": Stream()}, ValueError, "on_error='skip' is for datasets with indices"),
    ],
)
def test_arguments_that_cannot_be_are_refused(options: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        loader_of(**options)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge() as judge:
        yield judge


@pytest.mark.parametrize("seed", range(SKIPPING, SKIPPING + 6))
def test_a_random_program_that_skips_goes_on_as_if_it_had_not_been_stopped(judge: Judge, seed: int) -> None:
    verdict = judge.judge(seed)
    assert not verdict.told, verdict.words
