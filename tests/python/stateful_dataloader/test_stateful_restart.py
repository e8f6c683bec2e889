"""`StatefulDataLoader(on_worker_exit="restart")` replaces an exited worker with a warning, and keeps all batches."""

import os
import pickle
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from families import Mapped
from fresh_processes import with_torch
from hanging import kill_only_hung
from pinning import pin_without_device
from process_checks import nothing_is_left, wait_for  # noqa: F401 - a fixture for all tests here
from random_stateful.datasets import EpochAtEnd, NoisyCounting
from random_stateful.exits import check
from random_stateful.judging import StatefulJudge
from resumed import loaded
from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:.*A new process:RuntimeWarning")
Drawn, Stream = partial(NoisyCounting, 30, "torch"), partial(EpochAtEnd, 19, "torch")


def exits_once(path: Path, index: int) -> int:
    if index == 5 and not path.exists():
        path.touch()
        os._exit(7)
    return index


def loader_of(dataset: Any, how: str = "restart", **options: Any) -> Any:
    torch.manual_seed(7)
    options = {"num_workers": 2, "batch_size": 2, "multiprocessing_context": "fork", **options}
    return StatefulDataLoader(dataset, on_worker_exit=how, **options)


def pids_of(loader: Any) -> list[int]:
    return loader._iterator._pool.pids  # type: ignore[no-any-return]


def kill(loader: Any, worker: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pids_of(loader)[worker], number)


def read(
    loader: Any, exits: dict[tuple[int, int], int], breaks: int | None = None, number: signal.Signals = signal.SIGKILL
) -> list[list[Any]]:
    epochs = []
    for epoch in range(3):
        batches: list[Any] = []
        iterator = iter(loader)
        while epoch != 1 or len(batches) != breaks:
            if (epoch, len(batches)) in exits:
                kill(loader, exits[epoch, len(batches)], number)
            try:
                batches.append(next(iterator).tolist())
            except StopIteration:
                break
        epochs.append(batches)
    return epochs


@pytest.mark.parametrize(("dataset", "persistent"), [(Drawn, False), (Stream, True)])
def test_worker_exits_do_not_change_the_items(dataset: Any, persistent: bool) -> None:
    expected = read(loader_of(dataset(), "error", persistent_workers=persistent), {}, breaks=3)
    exits = {(0, 0): 1, (0, 4): 0, (1, 0): 0, (1, 2): 1, (2, 0): 1, (2, 5): 0}
    assert read(loader_of(dataset(), persistent_workers=persistent), exits, breaks=3) == expected


def test_worker_exits_do_not_change_the_items_of_spawned_workers() -> None:
    one = {"num_workers": 1, "persistent_workers": True}
    expected = read(loader_of(Drawn(), "error", **one), {}, breaks=3)
    loader = loader_of(Drawn(), multiprocessing_context="spawn", **one)
    assert read(loader, {(1, 2): 0}, breaks=3) == expected


@pytest.mark.parametrize(("dataset", "persistent"), [(Drawn, True), (Stream, False)])
def test_a_state_at_any_batch_around_a_worker_exit_resumes_exactly(dataset: Any, persistent: bool) -> None:
    expected = [batch.tolist() for batch in loader_of(dataset(), "error", persistent_workers=persistent)]
    loader = loader_of(dataset(), persistent_workers=persistent)
    states = []
    for number, _ in enumerate(loader):
        if number in (3, 7):
            kill(loader, number % 2)
        states.append(pickle.dumps(loader.state_dict()))
    for number in (2, 3, 7, len(states) - 1):
        other = loaded(loader_of(dataset(), persistent_workers=persistent), pickle.loads(states[number]))
        assert [batch.tolist() for batch in other] == expected[number + 1 :], number


def test_a_worker_that_exits_between_two_epochs_is_replaced_in_the_second_one() -> None:
    expected = read(loader_of(Drawn(), "error", persistent_workers=True), {})
    loader = loader_of(Drawn(), persistent_workers=True)
    found = []
    for _ in range(3):
        found.append([batch.tolist() for batch in loader])
        for worker in range(2):
            kill(loader, worker)
    assert found == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_out_of_order_each_sample_is_yielded_once(persistent: bool) -> None:
    loader = loader_of(range(40), in_order=False, persistent_workers=persistent)
    for _ in range(2):
        received = []
        for number, batch in enumerate(loader):
            received += batch.tolist()
            if number in (2, 9):
                kill(loader, number % 2)
        assert sorted(received) == list(range(40))


@pytest.mark.parametrize("dataset", [Drawn, Stream])
def test_workers_are_replaced_with_a_pinning_thread_as_well(monkeypatch: pytest.MonkeyPatch, dataset: Any) -> None:
    pin_without_device(monkeypatch)
    expected = read(loader_of(dataset(), "error", persistent_workers=True), {}, breaks=3)
    exits = {(0, 2): 1, (1, 0): 0, (1, 2): 1, (2, 4): 0}
    assert read(loader_of(dataset(), persistent_workers=True, pin_memory=True), exits, breaks=3) == expected


def test_a_warning_that_is_an_error_loses_nothing(tmp_path: Any) -> None:
    loader = loader_of(Mapped(partial(exits_once, tmp_path / "exited"), 12), batch_size=1)
    iterator, received = iter(loader), []
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning, match="A new process"):
            for batch in iterator:
                received.append(int(batch))
        received += [int(batch) for batch in iterator]
    assert received == list(range(12))


def test_worker_exits_do_not_change_the_items_of_a_random_program() -> None:
    with StatefulJudge(server=with_torch()) as judge:
        check(judge, 1, "fork")
        assert judge.exits > 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kill_only_hung(monkeypatch, tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_out_of_order_a_worker_that_was_suspended_between_two_epochs_is_replaced() -> None:
    options = {"batch_size": 1, "in_order": False, "persistent_workers": True}
    loader = loader_of(range(1), timeout=0.4, on_timeout="restart", **options)
    assert len([*loader]) == 1
    kill(loader, 0, signal.SIGSTOP)
    with pytest.warns(RuntimeWarning, match="process 0 .*was therefore killed"):
        assert len([*loader]) == 1


@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("ignore:.*was therefore killed:RuntimeWarning")
@pytest.mark.parametrize(("dataset", "persistent"), [(Drawn, True), (Stream, False)])
def test_stopped_workers_do_not_change_the_items(dataset: Any, persistent: bool) -> None:
    expected = read(loader_of(dataset(), "error", persistent_workers=persistent), {}, breaks=3)
    loader = loader_of(dataset(), persistent_workers=persistent, timeout=0.4, on_timeout="restart")
    assert read(loader, {(0, 0): 1, (1, 2): 0, (2, 5): 0}, breaks=3, number=signal.SIGSTOP) == expected
