"""ParallelMapper over processes returns results, reports errors and process exits, and ends all its processes."""

import gc
import os
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rank_forkserver
from node_sources import fails_at_three, numbers
from process_checks import ExitsAt, children, nothing_is_left, shared_mappings, wait_for  # noqa: F401 - a fixture for all tests here
from torchdata._engine.processes import shutdown
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper, ParallelMapper, Unbatcher


def over_processes(function: Any, count: int = 20, workers: int = 2, **options: Any) -> ParallelMapper[Any]:
    options.setdefault("multiprocessing_context", "fork")
    return ParallelMapper(numbers(count), function, workers, method="process", **options)


def square(number: int) -> int:
    return number * number


def with_pid(number: int) -> tuple[int, int]:
    time.sleep(0.005)
    return number, os.getpid()


def exits_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_processes_run_for_several_epochs_and_share_the_work() -> None:
    with Loader(over_processes(with_pid)) as loader:
        pids = [{pid for _, pid in loader} for _ in range(2)]
    assert pids[0] == pids[1]
    assert len(pids[0]) == 2
    assert os.getpid() not in pids[0]


def test_lambdas_and_closures_cross_also_where_the_function_is_pickled() -> None:
    offset = 5
    node = over_processes(lambda n: n + offset, 4, workers=1, multiprocessing_context="forkserver")
    assert list(node) == [5, 6, 7, 8]
    node.shutdown()


def test_arrays_and_tensors_cross_both_ways() -> None:
    def doubled(item: dict[str, Any]) -> dict[str, Any]:
        return {key: 2 * value for key, value in item.items()}

    def item_of(number: int) -> dict[str, Any]:
        return {"a": np.full((200, 200), number, "float32"), "t": torch.full((300, 300), number)}

    node = ParallelMapper(Mapper(numbers(6), item_of), doubled, 2, method="process", multiprocessing_context="fork")
    for number, item in enumerate(node):
        assert type(item["a"]) is np.ndarray
        assert item["a"].shape == (200, 200)
        assert (item["a"] == 2 * number).all()
        assert (item["t"] == 2 * number).all()
        item["a"] += 1  # the received array can be modified
    node.shutdown()


@pytest.mark.parametrize("prebatch", [None, 2])
def test_an_error_is_raised_at_its_position_with_the_traceback_and_name_of_its_process(prebatch: int | None) -> None:
    node = over_processes(fails_at_three, 6, prebatch=prebatch)
    assert [next(node) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError) as caught:
        next(node)
    text = str(caught.value)
    assert "worker process" in text
    assert "of ParallelMapper" in text
    assert "in fails_at_three" in text
    assert list(node) == [4, 5]
    node.shutdown()


def test_an_item_or_result_that_cannot_be_pickled_raises_an_error_in_its_turn() -> None:
    items: Any = IterableWrapper([1, threading.Lock(), 3, 4])
    function = lambda item: threading.Lock() if item == 3 else item  # noqa: E731
    node = ParallelMapper(items, function, 1, method="process", multiprocessing_context="fork")
    assert next(node) == 1
    for _ in range(2):
        with pytest.raises(TypeError, match="cannot pickle"):
            next(node)
    assert next(node) == 4
    node.shutdown()


def test_a_function_that_cannot_be_pickled_raises_an_error_that_names_the_remedy() -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"map_fn cannot be pickled.*connections in the function$"):
        over_processes(lambda n: lock, multiprocessing_context="spawn").reset()
    with pytest.raises(ValueError, match="nonsense"):
        over_processes(square, multiprocessing_context="nonsense").reset()


@pytest.mark.parametrize(
    ("function", "how", "code"),
    [(exits_at_three, "was killed by SIGKILL", -signal.SIGKILL), (ExitsAt(3), "exited with code 7", 7)],
)
def test_an_error_names_a_process_that_exits_and_a_reset_starts_new_ones(function: Any, how: str, code: int) -> None:
    node = over_processes(function, 8, workers=1)
    assert [next(node) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(WorkerExitedError, match=rf"worker process 0 of ParallelMapper \(pid \d+\) {how}") as caught:
        next(node)
    assert caught.value.exitcode == code
    with pytest.raises(WorkerExitedError):  # After a worker has exited, the epoch must not end without an error.
        list(node)
    node.reset()
    assert [next(node) for _ in range(3)] == [0, 1, 2]
    node.shutdown()


def test_states_count_yielded_items_and_not_items_that_processes_have_read_ahead() -> None:
    for options in ({}, {"prebatch": 3}, {"in_order": False}, {"snapshot_frequency": 4}):
        loader = Loader(Batcher(over_processes(square, **options), 2))
        for position in (0, 1, 5):
            iterator = iter(loader)
            seen = [next(iterator) for _ in range(position)]
            loader.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
            found = [*Unbatcher(IterableWrapper([*seen, *loader]))]
            assert (sorted(found) if "in_order" in options else found) == [n * n for n in range(20)]
        loader.shutdown()


def test_dropping_a_half_read_loader_leaves_no_process() -> None:
    before = set(children())
    loader = Loader(over_processes(square, 1000))
    iterator = iter(loader)
    assert next(iterator) == 0
    assert len(set(children()) - before) == 2
    del loader, iterator
    gc.collect()
    wait_for(lambda: set(children()) <= before)
    wait_for(lambda: shared_mappings() == 0)  # Threads release the shared memory, so the test waits.


def hangs_after_zero(number: int) -> int:
    time.sleep(0 if number == 0 else 1e8)
    return number


@pytest.mark.parametrize("how", ["error", "restart"])
def test_neither_dropping_a_node_nor_a_shutdown_waits_for_a_call_that_hangs(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "ASKED", 0.05)  # These worker processes do not end by themselves.
    before = set(children())
    node = over_processes(hangs_after_zero, on_worker_exit=how)
    assert next(node) == 0
    if how == "restart":
        node.shutdown()
        node.shutdown()
    del node
    wait_for(lambda: set(children()) <= before)
    wait_for(lambda: shared_mappings() == 0)  # threads release the shared memory


PROGRAM = """
import os, sys, time
from torchdata.nodes import IterableWrapper, Loader, ParallelMapper

def slow(number):
    time.sleep(0.01 if number else 0)
    return os.getpid()

if __name__ == "__main__":
    node = ParallelMapper(IterableWrapper(range(1000)), slow, 2, method="process", multiprocessing_context="fork")
    iterator = iter(Loader(node))
    with open(sys.argv[1] + ".part", "w") as file:
        print(*{next(iterator) for _ in range(10)}, file=file)
    os.rename(sys.argv[1] + ".part", sys.argv[1])
    BODY
"""


@pytest.mark.parametrize("body", ["sys.exit(0)", "os.kill(os.getpid(), 9)", "list(iterator)"])
def test_the_processes_end_with_the_program_however_it_ends(body: str, tmp_path: Path) -> None:
    path, pid_file = tmp_path / "program.py", tmp_path / "pids"
    path.write_text(PROGRAM.replace("BODY", body))
    program = rank_forkserver.ForkedProgram([str(path), str(pid_file)], dict(os.environ))
    try:
        wait_for(pid_file.exists)
        pids = [int(pid) for pid in pid_file.read_text().split()]
        assert pids
        if body == "list(iterator)":
            program.send_signal(signal.SIGINT)
        output, _ = program.communicate(timeout=250)
        if body == "list(iterator)":
            assert output.rstrip().endswith("KeyboardInterrupt")
        else:
            assert output == ""
        for pid in pids:
            wait_for(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
    finally:
        program.end()


@pytest.fixture(scope="module", autouse=True)
def programs_that_have_imported_torch() -> None:
    """Starts the server of `rank_forkserver` before the tests, so that `nothing_is_left` does not report the server."""
    rank_forkserver.imports("torch")
