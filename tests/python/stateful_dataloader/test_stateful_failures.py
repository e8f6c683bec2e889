"""If workers of a StatefulDataLoader fail, an error is raised, and all processes and shared memory are cleaned up."""

import gc
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset, Sampler

import rank_forkserver
from process_checks import children, nothing_is_left, wait_for  # noqa: F401 - a fixture for all tests here
from resumed import loaded
from torchdata._engine.processes import shutdown
from torchdata._observe.outside.attaching import attach
from torchdata._users_code import code_location
from torchdata.dataloader2.error import WorkerExitedError
from torchdata.stateful_dataloader import StatefulDataLoader


class Failing(Dataset[int]):
    def __init__(self, does: Any) -> None:
        self.does = does

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.does()
        return index


class FailingStream(IterableDataset[int]):
    def __init__(self, does: Any) -> None:
        self.does = does

    def __iter__(self) -> Iterator[int]:
        for index in range(12):
            if index == 5:
                self.does()
            yield index


class Stream(IterableDataset[Any]):
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


class Odd(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raising(error: BaseException) -> Any:
    def does() -> None:
        raise error

    return does


class AtOnce(Failing):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=str)
def test_a_note_of_an_error_names_the_sample(options: dict[str, Any]) -> None:
    location = code_location(Failing.__getitem__.__code__)
    cases: list[tuple[Any, Any, str]] = [
        (Failing(_fail), {"batch_size": 2}, f"raised by dataset[5] of Failing, in Failing.__getitem__ ({location})"),
        (Failing(_fail), {"batch_size": None}, f"of Failing, in Failing.__getitem__ ({location})"),
        (AtOnce(_fail), {"batch_size": 2}, "raised by __getitems__ of AtOnce, in AtOnce.__getitems__ ("),
        (FailingStream(_fail), {"batch_size": 2}, ") for its sample number 5, counted from 0"),
        (Failing(int), {"batch_size": 12, "collate_fn": _refuse}, "indices [0, 1, 2, 3, 4, 5, 6, 7] and 4 more"),
        (FailingStream(int), {"batch_size": 2, "collate_fn": _refuse}, "for the samples numbers 0 to 1"),
    ]
    for dataset, more, note in cases:
        with pytest.raises(ValueError, match="five|do not collate") as caught:
            list(StatefulDataLoader(dataset, **more, **options))
        assert note in str(caught.value) + "".join(getattr(caught.value, "__notes__", ())), note


def _fail() -> None:
    raise ValueError("five")


def _refuse(samples: list[int]) -> None:
    raise ValueError("these do not collate")


def loader_of(does: Any, **options: Any) -> Any:
    options = {"num_workers": 2, "batch_size": 2, "multiprocessing_context": "fork", **options}
    return StatefulDataLoader(Failing(does), **options)


@pytest.mark.parametrize("error", [KeyError("five"), ValueError("five"), Odd(1, 2)])
def test_an_error_keeps_its_type_and_names_the_worker(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        list(loader_of(raising(error)))
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    assert f"Caught {type(error).__name__} in DataLoader worker process 0." in text
    assert "Traceback" in text


def test_after_an_error_the_next_batches_equal_those_of_torch_and_can_be_read_from_a_state() -> None:
    loader = loader_of(raising(KeyError("five")))
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(KeyError):
        next(iterator)
    later = loaded(loader_of(lambda: None), loader.state_dict())
    for batches in (iterator, later):
        assert [batch.tolist() for batch in batches] == [[6, 7], [8, 9], [10, 11]]


@pytest.mark.parametrize("steering", [StopIteration(), SystemExit(3), KeyboardInterrupt()])
def test_system_exit_and_keyboard_interrupt_in_a_worker_arrive_as_errors(steering: BaseException) -> None:
    with pytest.raises(RuntimeError, match=f"Caught {type(steering).__name__} in DataLoader worker process 0"):
        list(loader_of(raising(steering)))


def test_errors_of_streams_of_init_functions_and_of_collating_arrive() -> None:
    def broken(_: Any) -> Any:
        raise OSError("no")

    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 0"):
        list(StatefulDataLoader(FailingStream(raising(ValueError("five"))), num_workers=1))
    for option in ("worker_init_fn", "collate_fn"):
        with pytest.raises(OSError, match="Caught OSError in DataLoader worker process 0"):
            list(loader_of(lambda: None, **{option: broken}))


def test_a_batch_that_cannot_be_sent_raises_an_error_at_its_position() -> None:
    def collate(batch: list[int]) -> Any:
        return threading.Lock() if 5 in batch else batch

    iterator = iter(loader_of(lambda: None, collate_fn=collate))
    assert [next(iterator) for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(TypeError, match="worker process 0"):
        next(iterator)
    assert list(iterator) == [[6, 7], [8, 9], [10, 11]]


def test_an_error_names_what_cannot_be_pickled_for_spawned_workers() -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled.*in the worker, when they are first used$"):
        iter(StatefulDataLoader(Holding(), num_workers=1, multiprocessing_context="spawn"))


class Holding(Failing):
    def __init__(self) -> None:
        super().__init__(threading.Lock())


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: os._exit(7), "exited with code 7"),
    ],
)
@pytest.mark.parametrize("iterable", [False, True])
def test_an_error_names_the_worker_that_exited_and_the_cause(ends: Any, how: str, iterable: bool) -> None:
    has_come = multiprocessing.Event()  # set when the other worker's batch has been received

    def does() -> None:
        has_come.wait(120)
        ends()

    loader = loader_of(does)
    if iterable:
        loader = StatefulDataLoader(FailingStream(does), 2, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    has_come.set()
    with pytest.raises(WorkerExitedError, match=how) as caught:
        next(iterator)
    assert isinstance(caught.value, RuntimeError)
    assert "DataLoader worker (pid(s)" in str(caught.value)
    is_killed = re.search(r"DataLoader worker \(pid \d+\) is killed by signal: ", str(caught.value)) is not None
    assert is_killed == ("SIGKILL" in how)
    assert caught.value.worker == 0


def test_a_state_survives_the_exit_of_a_worker() -> None:
    loader, found = loader_of(lambda: os._exit(1)), []
    with pytest.raises(WorkerExitedError):  # The loop also raises the error while it waits for the other worker.
        for batch in loader:
            found.append(batch.tolist())
    assert len(found) <= 2
    later = loaded(loader_of(lambda: None), loader.state_dict())
    assert found + [batch.tolist() for batch in later] == [[i, i + 1] for i in range(0, 12, 2)]


def test_an_interrupt_between_worker_and_user_raises_an_error_and_does_not_hang() -> None:
    class Interrupted(Sampler[int]):
        def __len__(self) -> int:
            return 12

        def __iter__(self) -> Iterator[int]:
            yield from range(9)
            raise KeyboardInterrupt

    loader = StatefulDataLoader(range(12), batch_size=None, sampler=Interrupted(), num_workers=2)
    iterator = iter(loader)
    assert [next(iterator) for _ in range(5)] == [*range(5)]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    with pytest.raises(RuntimeError, match="begin a new loop"):
        next(iterator)


def test_a_slow_batch_raises_a_timeout_error_that_is_also_a_runtime_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "ASKED", 0.05)  # The worker does not end by itself.
    loader = loader_of(lambda: time.sleep(1000), timeout=0.5)
    iterator = iter(loader)
    if hasattr(os, "memfd_create") and os.environ.get("TORCHDATA_PORTABLE") != "1":  # `attach` needs memfd
        (attached,) = attach(os.getpid())
        wait_for(lambda: sum(worker.items for worker in attached.stats().workers) >= 2)
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0.5 seconds.*0") as caught:
        next(iterator)
    assert isinstance(caught.value, TimeoutError)
    began = time.monotonic()
    with pytest.raises(TimeoutError):  # As with torch's loader, a second request also waits until the timeout.
        next(iterator)
    assert time.monotonic() - began >= 0.5


def test_unread_batches_do_not_delay_the_end_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "ASKED", 1000.0)  # Without this line, the loader would kill the worker.
    loader = StatefulDataLoader(
        range(100_000), batch_size=1000, num_workers=1, collate_fn=lambda batch: [[1] * 60_000], prefetch_factor=50
    )
    iterator = iter(loader)
    next(iterator)
    del iterator, loader
    gc.collect()
    wait_for(lambda: not children())


def test_two_iterators_of_a_loader_work_side_by_side() -> None:
    loader = StatefulDataLoader(range(6), batch_size=2, num_workers=1)
    one, two = iter(loader), iter(loader)
    assert [next(one).tolist(), next(two).tolist(), next(one).tolist()] == [[0, 1], [0, 1], [2, 3]]
    assert [batch.tolist() for batch in two] == [[2, 3], [4, 5]]


def test_only_persistent_workers_outlive_an_epoch() -> None:
    for persistent in (False, True):
        loader = StatefulDataLoader(
            range(8), num_workers=2, collate_fn=lambda batch: os.getpid(), persistent_workers=persistent
        )
        first, second = set(loader), set(loader)
        assert len(first) == 2
        assert (first == second) == persistent


ENDS = ["", "os._exit(0)", "os.kill(os.getpid(), 9)", "raise SystemExit"]

#: A program that forks children. Each child creates a loader, and then executes an element of `ENDS` to exit.
PROGRAM = f"""
import os, sys, time
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

class Slow(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        time.sleep(0.01)
        return index

for end in {ENDS}:
    if os.fork() == 0:
        break
    os.wait()
else:
    end = None
iterator = iter(StatefulDataLoader(Slow(), num_workers=2, multiprocessing_context="fork"))
next(iterator)
try:
    with open(sys.argv[1], "a") as file:
        print(*iterator._pool.pids, file=file)
    if end is None:
        list(iterator)
    exec(end or "")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture(scope="module", autouse=True)
def programs_that_have_imported_torch() -> None:
    rank_forkserver.imports("torch.utils.data")


def test_workers_end_with_the_program_however_it_ends_and_ctrl_c_ends_a_loop_once(tmp_path: Path) -> None:
    script, pid_file = tmp_path / "program.py", tmp_path / "pids"
    script.write_text(PROGRAM)
    program = rank_forkserver.ForkedProgram([str(script), str(pid_file)], dict(os.environ))
    try:
        wait_for(lambda: pid_file.exists() and pid_file.read_text().count("\n") > len(ENDS))
        os.killpg(program.pid, signal.SIGINT)
        assert program.communicate(timeout=250) == ("interrupted\n", None)
        assert program.returncode == 0
        pids = [int(pid) for pid in pid_file.read_text().split()]
        assert len(pids) == 2 * len(ENDS) + 2
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    finally:
        program.end()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("samples", "remedy"),
    [
        ([{"a": 1}, {"b": 1}], "All items of a batch need the same keys, but item 0 has 'a' and item 1 has 'b'"),
        ([(1, 2), (1, None)], "None cannot be collated, and member 1 of item 1 of the batch is None"),
    ],
)
def test_a_batch_that_cannot_be_collated_is_described_with_the_remedy(
    samples: list[Any], remedy: str, num_workers: int
) -> None:
    for dataset in (samples, Stream(samples)):
        with pytest.raises((KeyError, RuntimeError, TypeError)) as caught:
            list(StatefulDataLoader(dataset, batch_size=2, num_workers=num_workers))
        assert any(note.startswith(remedy) for note in caught.value.__notes__), caught.value.__notes__


def test_an_error_of_a_collate_fn_of_the_users_gets_no_advice_on_batches() -> None:
    loader = StatefulDataLoader([1, None], batch_size=2, collate_fn=sum)
    with pytest.raises(TypeError) as caught:
        list(loader)
    assert len(caught.value.__notes__) == 1
