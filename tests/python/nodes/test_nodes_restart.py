"""`ParallelMapper(method="process", on_worker_exit="restart")` replaces an exited process, and no item is lost."""

import contextlib
import os
import random
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

from exiting import Exiting
from hanging import ClockOfHangs, Hanging
from process_checks import nothing_is_left  # noqa: F401 - a fixture for all tests here
from torchdata.nodes import IterableWrapper, Loader, ParallelMapper, _processes


def mapper(function: Any, count: int = 20, workers: int = 2, **options: Any) -> ParallelMapper[Any]:
    options = {"multiprocessing_context": "fork", "on_worker_exit": "restart", **options}
    return ParallelMapper(IterableWrapper(range(count)), function, workers, method="process", **options)


squares = [number * number for number in range(20)]


@pytest.mark.filterwarnings("ignore:.*A new process:RuntimeWarning")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_worker_exits_do_not_change_the_items(tmp_path: Path, method: str) -> None:
    exits = {3: 1, 4: 2, 13: 1}
    loader = Loader(mapper(Exiting(tmp_path, exits), multiprocessing_context=method))
    assert list(loader) == squares
    assert len(list(tmp_path.iterdir())) == sum(exits.values())
    assert list(loader) == squares
    loader.root.shutdown()


@pytest.mark.filterwarnings("ignore:.*A new process:RuntimeWarning")
@pytest.mark.parametrize("options", [{"in_order": False}, {"prebatch": 3}, {"workers": 1}])
def test_no_item_is_lost_out_of_order_or_in_batches(tmp_path: Path, options: dict[str, Any]) -> None:
    node = mapper(Exiting(tmp_path, dict.fromkeys(range(0, 20, 4), 1)), **options)
    assert sorted(Loader(node)) == squares
    node.shutdown()


@pytest.mark.filterwarnings("ignore:.*A new process:RuntimeWarning")
@pytest.mark.parametrize("seed", range(2))
def test_processes_may_be_killed_at_any_moment_and_states_are_exact(seed: int) -> None:
    chance, received, states = random.Random(seed), [], []
    loader = Loader(mapper(abs, 100))
    for item in loader:
        received.append(item)
        states.append(loader.state_dict())
        if chance.random() < 0.1:
            members = loader.root._it._workers.members  # type: ignore[attr-defined]
            pid = chance.choice(members.processes).pid
            with contextlib.suppress(ProcessLookupError):  # the exited process may not be replaced yet
                if pid is not None:  # None while the replacement is not started
                    os.kill(pid, signal.SIGKILL)
    assert received == list(range(100))
    for number in chance.sample(range(100), 2):
        loader.load_state_dict(states[number])
        assert list(loader) == list(range(number + 1, 100))
    loader.root.shutdown()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_warning_that_is_an_error_loses_nothing(tmp_path: Path) -> None:
    node = mapper(Exiting(tmp_path, {3: 1, 4: 1}))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert list(Loader(node)) == squares
    node.shutdown()


class HangsAtThree:
    def __init__(self, folder: Path) -> None:
        self.hang = Hanging("sleep", folder)

    def __call__(self, number: int) -> int:
        if number == 3:
            self.hang()
        return number * number


def test_without_restart_a_missing_result_raises_a_timeout_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_processes, "monotonic", ClockOfHangs(tmp_path))
    node = mapper(HangsAtThree(tmp_path), workers=1, timeout=0.5, on_worker_exit="error")
    iterator = iter(Loader(node))
    assert [next(iterator) for _ in range(3)] == squares[:3]
    with pytest.raises(TimeoutError, match=r"worker process 0 of ParallelMapper gave no result within 0.5 s"):
        next(iterator)
    node.shutdown()
    with pytest.raises(ValueError, match="ParallelMapper: on_timeout='restart' needs a timeout"):
        mapper(abs, on_timeout="restart")
